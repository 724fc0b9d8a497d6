"""Functions are traced once for each code and what it reaches; nothing stale is ever used."""

from __future__ import annotations

import functools
import gc
import types
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import fmhagen
from fmhagen.expr import mods as mods_module
from fmhagen.expr.mods import MaskMod, ScoreMod
from fmhagen.expr.traced import Traced
from fmhagen.tracing import MAX_FUNCTIONS, TracedMods

WIDTH = 3
FIXED = 0


@pytest.fixture
def traces(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The functions that were traced."""
    from fmhagen.expr import capture

    found: list[Any] = []
    trace = capture.trace

    def note(function: Any, *rest: Any) -> Any:
        found.append(function)
        return trace(function, *rest)

    monkeypatch.setattr(capture, "trace", note)
    assert mods_module.MaskMod is MaskMod
    return found


def scaled(factor: float) -> Callable[..., Any]:
    def mod(score: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        return score * factor

    return mod


def biased(bias: Any) -> Callable[..., Any]:
    return lambda score, b, h, q_idx, kv_idx: score + bias[h]


def test_equal_functions_are_traced_once(traces: list[Any]) -> None:
    known = TracedMods()
    first, _ = known(ScoreMod, scaled(2.0))
    second, _ = known(ScoreMod, scaled(2.0))
    assert first is second
    assert len(traces) == 1


def test_a_captured_constant_that_changed_is_seen(traces: list[Any]) -> None:
    known = TracedMods()
    nodes = [known(ScoreMod, scaled(factor))[0].node for factor in (2.0, 3.0, -0.0, 0.0)]
    assert len(set(nodes)) == 4
    assert len(traces) == 4


def test_a_global_and_a_closure_that_changed_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    known = TracedMods()
    width = 5

    def near(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        return q_idx - kv_idx < WIDTH

    def nearer(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        return q_idx - kv_idx < width

    before = known(MaskMod, near)[0], known(MaskMod, nearer)[0]
    monkeypatch.setitem(near.__globals__, "WIDTH", 4)
    width = 6
    after = known(MaskMod, near)[0], known(MaskMod, nearer)[0]
    assert [str(mod) for mod in before] == ["(q_idx - kv_idx) < 3", "(q_idx - kv_idx) < 5"]
    assert [str(mod) for mod in after] == ["(q_idx - kv_idx) < 4", "(q_idx - kv_idx) < 6"]


def test_constants_inside_inner_functions_partials_and_objects_are_seen() -> None:
    known = TracedMods()

    class Window:
        def __init__(self, width: int) -> None:
            self.width = width

        def __call__(self, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
            return q_idx - kv_idx < self.width

    def within(width: int, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        return q_idx - kv_idx < width

    def outer(width: int) -> Callable[..., Any]:
        inner = functools.partial(within, width)
        return lambda b, h, q_idx, kv_idx: inner(b, h, q_idx, kv_idx)

    for make in (Window, outer, lambda width: functools.partial(within, width)):
        texts = [str(known(MaskMod, make(width))[0]) for width in (3, 4, 3)]
        assert texts == ["(q_idx - kv_idx) < 3", "(q_idx - kv_idx) < 4", "(q_idx - kv_idx) < 3"], (
            make
        )

    class Fixed:
        def __call__(self, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
            return q_idx - kv_idx < FIXED

    for fixed in (1, 2):
        Fixed.__call__.__globals__["FIXED"] = fixed
        assert str(known(MaskMod, Fixed())[0]) == f"(q_idx - kv_idx) < {fixed}"
    window = Window(7)
    assert str(known(MaskMod, window)[0]) == "(q_idx - kv_idx) < 7"
    window.width = 8
    assert str(known(MaskMod, window)[0]) == "(q_idx - kv_idx) < 8"


class Near:
    """A window whose width belongs to the class, and is read by another method."""

    width = 3

    @staticmethod
    def distance(q_idx: Any, kv_idx: Any) -> Any:
        return abs(q_idx - kv_idx)

    def is_near(self, q_idx: Any, kv_idx: Any) -> Any:
        return self.distance(q_idx, kv_idx) < self.width

    def __call__(self, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        return self.is_near(q_idx, kv_idx)


def settings() -> None:
    """A function that is a place for numbers."""


CONFIG = types.ModuleType("config_of_a_user")


@pytest.mark.parametrize(
    ("function", "owner"),
    [
        (lambda b, h, q, k: abs(q - k) < CONFIG.width, CONFIG),
        (lambda b, h, q, k: abs(q - k) < getattr(CONFIG, "width"), CONFIG),  # noqa: B009
        (lambda b, h, q, k: abs(q - k) < Near.width, Near),
        (lambda b, h, q, k: Near().is_near(q, k), Near),
        (lambda b, h, q, k: abs(q - k) < settings.width, settings),  # type: ignore[attr-defined]
        (Near(), Near),
        (Near().__call__, Near),
        (functools.partial(Near().__call__), Near),
        (type("Nearer", (Near,), {})(), Near),
    ],
    ids=[
        "module",
        "getattr",
        "class",
        "method",
        "function",
        "object",
        "bound",
        "partial",
        "subclass",
    ],
)
def test_constants_of_modules_classes_and_functions_are_seen(
    function: Any, owner: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = TracedMods()
    for width in (3, 4, 3):
        monkeypatch.setattr(owner, "width", width, raising=False)
        assert str(known(MaskMod, function)[0]) == f"abs(q_idx - kv_idx) < {width}"


def test_declared_parameters_and_mods_are_known_by_what_they_are(traces: list[Any]) -> None:
    known = TracedMods()
    texts = []
    for name in ("width", "height", "width"):
        limit, edges = fmhagen.scalar(name, "i32"), fmhagen.tensor(f"{name}s", "i32")
        near = MaskMod(lambda b, h, q, k, limit=limit: q - k < limit)
        for other in (limit, edges):

            def mask(b: Any, h: Any, q: Any, k: Any, near: Any = near, other: Any = other) -> Any:
                edge = other if isinstance(other, Traced) else other[q]
                return near(b, h, q, k) & (k < edge)

            texts.append(str(known(MaskMod, mask)[0]))
    assert len(set(texts)) == 4
    assert texts[:2] == texts[4:]
    assert len(traces) == 3 + 4  # of the mods, and of the masks
    table = np.arange(4)
    held = MaskMod(lambda b, h, q, k: table[h] < k)
    found = [known(MaskMod, lambda b, h, q, k: held(b, h, q, k) | (k < 1)) for _ in range(2)]
    assert all(bound == {"table": table} for _, bound in found)


def test_tensors_are_those_of_the_call_and_are_not_kept(traces: list[Any]) -> None:
    known = TracedMods()
    one, two = np.zeros(4, np.float32), np.ones(4, np.float32)
    first, bound = known(ScoreMod, biased(one))
    assert bound["bias"] is one
    second, bound = known(ScoreMod, biased(two))
    assert bound["bias"] is two
    assert first is second
    assert first.bound == {}
    assert len(traces) == 1
    alive = weakref.ref(one)
    traces.clear()
    del one, bound
    gc.collect()
    assert alive() is None


def test_the_kind_and_shape_of_a_tensor_are_seen() -> None:
    known = TracedMods()
    texts = {
        str(known(ScoreMod, biased(np.zeros(4, dtype)))[0]) for dtype in (np.float32, np.float16)
    }
    assert len(texts) == 2

    def last(bias: Any) -> Callable[..., Any]:
        return lambda score, b, h, q_idx, kv_idx: score + bias[bias.shape[0] - 1]

    texts = {str(known(ScoreMod, last(np.zeros(n, np.float32)))[0]) for n in (4, 5)}
    assert len(texts) == 2


def test_one_tensor_under_two_names_and_two_under_one() -> None:
    known = TracedMods()

    def both(first: Any, second: Any) -> Callable[..., Any]:
        return lambda score, b, h, q_idx, kv_idx: score + first[h] * second[h]

    one, two = np.zeros(4, np.float32), np.ones(4, np.float32)
    _, same = known(ScoreMod, both(one, one))
    _, different = known(ScoreMod, both(one, two))
    assert len(same) == 1
    assert {id(tensor) for tensor in different.values()} == {id(one), id(two)}


def test_texts_and_mods_pass_through() -> None:
    known = TracedMods()
    bias = np.zeros(4, np.float32)
    mod = ScoreMod(biased(bias))
    bare, bound = known(ScoreMod, mod)
    assert bare == mod
    assert bound["bias"] is bias
    assert known(MaskMod, "kv_idx <= q_idx")[0] is known(MaskMod, "kv_idx <= q_idx")[0]


def test_what_cannot_be_compared_is_traced_each_time(traces: list[Any]) -> None:
    known = TracedMods()

    class Opaque:
        __slots__ = ("width",)

    opaque = Opaque()

    def mod(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        return q_idx - kv_idx < opaque.width

    for width in (3, 4):
        opaque.width = width
        assert str(known(MaskMod, mod)[0]) == f"(q_idx - kv_idx) < {width}"
    assert len(traces) == 2


def test_only_so_many_are_kept() -> None:
    known = TracedMods()
    for factor in range(MAX_FUNCTIONS + 10):
        known(ScoreMod, scaled(float(factor)))
    assert len(known._known) == MAX_FUNCTIONS
