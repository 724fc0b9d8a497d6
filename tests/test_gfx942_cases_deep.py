"""The cases of the other head dims on the gfx942 emulator, under eight orders of events each."""

import pytest
from cases import Case, cases_of_other_dims
from emulated import check_every_order


@pytest.mark.parametrize("case", cases_of_other_dims(), ids=lambda case: case.name)
def test_every_order_of_events_is_right(case: Case) -> None:
    check_every_order(case, "gfx942")
