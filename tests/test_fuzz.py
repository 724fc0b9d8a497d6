"""Random specs, shapes, layouts, scales and seeds against float64, on the emulator of both targets.

`HYPOTHESIS_PROFILE=search pytest tests/test_fuzz.py` looks for new examples; else they are fixed.
"""

import pytest
from cases import LAYOUTS, Case, cases, place
from emulated import TARGET_NAMES, emulate, plan_of
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fmhagen.runtime.emulator_backend import EmulatorOptions

SPECS = tuple(dict.fromkeys(case.spec for case in cases()))
EXAMPLES = 60
# The sizes that tiles are made of, and their neighbours.
LENGTHS = st.one_of(
    st.integers(0, 300), st.sampled_from((0, 1, 31, 32, 63, 64, 65, 127, 128, 129, 255, 256, 257))
)


@st.composite
def drawn_cases(draw: st.DrawFn) -> Case:
    heads_kv = draw(st.integers(1, 3))
    heads = heads_kv * draw(st.integers(1, 8 // heads_kv))
    rows, keys = draw(LENGTHS), draw(LENGTHS)
    batch = draw(st.integers(1, 2))
    while heads > heads_kv and batch * heads * rows * keys > 250_000:
        heads -= heads_kv
    return Case(
        spec=draw(st.sampled_from(SPECS)),
        batch=batch,
        heads=heads,
        heads_kv=heads_kv,
        rows=rows,
        keys=keys,
        magnitude=draw(st.sampled_from((0.0, 1.0, 1.0, 5.0, 60.0, 200.0))),
        scale=draw(st.sampled_from((None, None, 0.0, 1e-3, 0.5))),
        want_lse=draw(st.booleans()),
    )


@pytest.mark.parametrize("target", TARGET_NAMES)
@settings(max_examples=EXAMPLES, suppress_health_check=list(HealthCheck))
@given(
    case=drawn_cases(),
    layouts=st.tuples(*[st.sampled_from(LAYOUTS[:-1])] * 3),
    seed=st.integers(0, 2**32),
    units=st.integers(1, 9),
)
def test_o_and_lse_are_right(
    target: str, case: Case, layouts: tuple[str, str, str], seed: int, units: int
) -> None:
    order = str(case.spec.layout)
    tensors = tuple(
        place(values, order, layout).numpy
        for values, layout in zip(case.values(), layouts, strict=True)
    )
    result = emulate(
        plan_of(case.spec, target),
        tensors,
        options=EmulatorOptions(seed=seed, compute_units=units),
        scale=case.scale,
        want_lse=case.want_lse,
    )
    case.check(result.o, result.lse)
