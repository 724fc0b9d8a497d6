"""Two launches that are one: the quick path of calls whose keys are cut, without a GPU."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from fmhagen.runtime.pair import WORKSPACE_FIELDS, PreparedPair
from fmhagen.runtime.prepared import Prepared


@dataclasses.dataclass
class Kernel:
    """Stands for a loaded kernel: says what is bound and what is started."""

    name: str
    bound: list[tuple[Any, ...]]
    started: list[str]
    code: int = 0

    def bind(
        self, values: list[Any], blocks: int, stream: int, memories: Any
    ) -> Callable[[], object]:
        self.bound.append((self.name, *values, blocks, stream))

        def launch() -> int:
            self.started.append(self.name)
            return self.code

        return launch

    def settle(self, launch: Any, code: object) -> None:
        raise AssertionError("the caller settles")


@dataclasses.dataclass
class Workspace:
    address: int

    def data_ptr(self) -> int:
        return self.address


def pair(places: list[int], first: Kernel, second: Kernel) -> PreparedPair:
    common: dict[str, Any] = {
        "names": ("q", *WORKSPACE_FIELDS, "scale_log2"),
        "values": dict.fromkeys(("q", *WORKSPACE_FIELDS, "scale_log2"), 0),
        "maps": {},
        "more": WORKSPACE_FIELDS,
        "new_o": None,
        "new_lse": None,
        "keys_are_empty": False,
        "device": 0,
        "stream": None,
        "wants_gradients": lambda: False,
        "scale_log2": 0.5,
    }
    spaces = iter(map(Workspace, places))
    return PreparedPair(
        **common,
        blocks=3,
        loaded=first,
        second=Prepared(**common, blocks=4, loaded=second),
        new_workspace=lambda: next(spaces),
        o_bytes=64,
        both_write=True,
    )


def test_each_start_has_a_workspace_and_a_place_is_bound_once() -> None:
    bound: list[tuple[Any, ...]] = []
    started: list[str] = []
    prepared = pair(
        [1000, 1000, 2000], Kernel("first", bound, started), Kernel("second", bound, started)
    )
    launch = prepared.launch_of(("key",), (7, 8, 9, 10, 11), None, stream=5)
    assert prepared.launches == {("key",): launch}
    assert not bound, "nothing is bound before there is a workspace"
    assert [launch(), launch(), launch()] == [0, 0, 0]
    assert started == ["first", "second"] * 3
    assert bound == [
        ("first", 7, 1000, 1064, 0.5, 3, 5),
        ("second", 7, 1000, 1064, 0.5, 4, 5),
        ("first", 7, 2000, 2064, 0.5, 3, 5),
        ("second", 7, 2000, 2064, 0.5, 4, 5),
    ]


def test_the_second_launch_stays_behind_a_first_that_did_not_start() -> None:
    started: list[str] = []
    prepared = pair([1000], Kernel("first", [], started, code=201), Kernel("second", [], started))
    assert prepared.launch_of(("key",), (7, 8, 9, 10, 11), None, stream=0)() == 201
    assert started == ["first"]
