"""Tracing of plain functions: what they become, what they capture, and where errors point."""

from __future__ import annotations

import collections
import copy
import functools
import inspect
import pickle
import types
from typing import Any

import numpy as np
import pytest

import fmhagen
from fmhagen.errors import InvalidSpecError, TraceError
from fmhagen.expr import build
from fmhagen.expr.mods import MaskMod, ScoreMod
from fmhagen.expr.nodes import Node, Parameter
from fmhagen.expr.text import from_text, to_text
from fmhagen.spec import AttentionSpec

TABLE = np.arange(6, dtype=np.int32)
MATRIX = np.zeros((4, 3), np.float32)
CUBE = np.zeros((2, 4, 300), np.float32)
WEIGHT = np.array(1.5, np.float32)


@pytest.mark.parametrize(
    ("function", "text"),
    [
        (lambda b, h, q, k: q >= k, "kv_idx <= q_idx"),
        (lambda b, h, q, k: k <= q, "kv_idx <= q_idx"),
        (lambda b, h, q, k: ~(k > q), "kv_idx <= q_idx"),
        (lambda b, h, q, k: np.less_equal(k, q), "kv_idx <= q_idx"),
        (lambda b, h, q, k: np.logical_not(np.greater(k, q)), "kv_idx <= q_idx"),
        (lambda b, h, q, k: True, "True"),
        (lambda b, h, q, k: (q < k) == (q < k), "True"),
        (lambda b, h, q, k: (q ^ q) == 0, "True"),
        (lambda b, h, q, k: b.new_ones(size=(), dtype=bool), "True"),
        (lambda b, h, q, k: q.new_full((), fill_value=7) < k, "7 < kv_idx"),
        (lambda b, h, q, k: q.new_tensor(7).new_zeros(()) < k, "0 < kv_idx"),
        (lambda b, h, q, k: (q + 2 + 0) * 1 > k - (-3), "(kv_idx + 3) < (q_idx + 2)"),
        (lambda b, h, q, k: (q // 8) == (k // 8), "(q_idx // 8) == (kv_idx // 8)"),
        (lambda b, h, q, k: -q % 7 == 3, "(-q_idx % 7) == 3"),
        (lambda b, h, q, k: 20 // 3 * q == -20 // 3, "(6 * q_idx) == -7"),
        (lambda b, h, q, k: (q & 3) | 4 == 4, "((q_idx & 3) | 4) == 4"),
        (lambda b, h, q, k: q / 2 > k, "f32(kv_idx) < (f32(q_idx) / 2.0)"),
        (lambda b, h, q, k: q, "q_idx != 0"),
        (lambda b, h, q, k: fmhagen.where(h < 2, q >= k, q == k), None),
        (lambda b, h, q, k: TABLE[q] == TABLE[-1], "TABLE: i32[1]; TABLE[q_idx] == TABLE[5]"),
        (lambda b, h, q, k: divmod(q, 4)[1] < 2, "(q_idx % 4) < 2"),
        (lambda b, h, q, k: abs(q - k) < 3, "abs(q_idx - kv_idx) < 3"),
        (lambda b, h, q, k: q.astype(np.int64) > k.astype("float32"), None),
    ],
)
def test_masks_become_text(function: Any, text: str | None) -> None:
    mask = MaskMod(function)
    if text is not None:
        assert str(mask) == text
    assert MaskMod(str(mask)) == mask
    assert from_text(to_text(mask.node)) is mask.node


@pytest.mark.parametrize(
    ("function", "text"),
    [
        (lambda s, b, h, q, k: s * 2, "score * 2.0"),
        (lambda s, b, h, q, k: 50 * np.tanh(s / 50), "50.0 * tanh(score / 50.0)"),
        (lambda s, b, h, q, k: s + np.float32(0.5), "score + 0.5"),
        (lambda s, b, h, q, k: np.float32(0.5) - s, "0.5 - score"),
        (lambda s, b, h, q, k: np.where(q == k, s, -np.inf), None),
        (lambda s, b, h, q, k: s * WEIGHT, "WEIGHT: f32; score * WEIGHT"),
        (lambda s, b, h, q, k: WEIGHT * s, "WEIGHT: f32; WEIGHT * score"),
        (lambda s, b, h, q, k: s + MATRIX[h, k], "MATRIX: f32[2]; score + MATRIX[h, kv_idx]"),
        (lambda s, b, h, q, k: s + MATRIX[h][k], "MATRIX: f32[2]; score + MATRIX[h, kv_idx]"),
        (lambda s, b, h, q, k: s + CUBE[b][h][k], "CUBE: f32[3]; score + CUBE[b, h, kv_idx]"),
        (lambda s, b, h, q, k: s + CUBE[b, h][k], "CUBE: f32[3]; score + CUBE[b, h, kv_idx]"),
        (lambda s, b, h, q, k: s + CUBE[b][h, k], "CUBE: f32[3]; score + CUBE[b, h, kv_idx]"),
        (lambda s, b, h, q, k: s + CUBE[b, h, k, ...], "CUBE: f32[3]; score + CUBE[b, h, kv_idx]"),
        (lambda s, b, h, q, k: s + CUBE[b, :][h, :][k], "CUBE: f32[3]; score + CUBE[b, h, kv_idx]"),
        (lambda s, b, h, q, k: s.where(q >= k, -1.0), "where(kv_idx <= q_idx, score, -1.0)"),
        (lambda s, b, h, q, k: s.masked_fill(k <= q, 2), "where(kv_idx <= q_idx, 2.0, score)"),
        (lambda s, b, h, q, k: np.log1p(s), "log(1.0 + score)"),
        (lambda s, b, h, q, k: np.expm1(s), "exp(score) - 1.0"),
        (lambda s, b, h, q, k: s**2, "score * score"),
        (lambda s, b, h, q, k: s**0.5, "sqrt(score)"),
        (lambda s, b, h, q, k: s + (q > k), "score + f32(kv_idx < q_idx)"),
        (lambda s, b, h, q, k: 1, "1.0"),
        (lambda s, b, h, q, k: np.clip(s, -3, None), "maximum(score, -3.0)"),
        (lambda s, b, h, q, k: s.clip(max=3), "minimum(score, 3.0)"),
        (lambda s, b, h, q, k: fmhagen.scalar("t") * s, "t: f32; t * score"),
        (
            lambda s, b, h, q, k: s + fmhagen.tensor("x", "bf16", 2)[h, q],
            "x: bf16[2]; score + x[h, q_idx]",
        ),
        (lambda s, b, h, q, k: np.dot(MATRIX[q], MATRIX[k]) + s, None),
        (lambda s, b, h, q, k: s + sum(MATRIX[q]), None),
    ],
)
def test_scores_become_text(function: Any, text: str | None) -> None:
    mod = ScoreMod(function)
    if text is not None:
        assert str(mod) == text
    assert ScoreMod(str(mod)) == mod


def _line(function: Any) -> int:
    return inspect.getsourcelines(function)[1]


def uses_if(b: Any, h: Any, q: Any, k: Any) -> Any:
    if q > k:
        return True
    return q == k


def helper(q: Any) -> Any:
    return np.linalg.norm(q) > 1


BAD: dict[str, tuple[Any, int, str]] = {
    "if": (uses_if, 1, "`if`"),
    "and": (lambda b, h, q, k: q > k and k > 2, 0, "`and`"),
    "not": (lambda b, h, q, k: not q, 0, "fmhagen.where"),
    "chained": (lambda b, h, q, k: 0 <= k < 7, 0, "chained comparisons"),
    "builtin_min": (lambda b, h, q, k: min(q, k) > 2, 0, "fmhagen.minimum"),
    "loop": (lambda b, h, q, k: [x for x in q], 0, "cannot be iterated"),
    "range": (lambda b, h, q, k: list(range(q)), 0, "known only in the kernel"),
    "list": (lambda b, h, q, k: [1, 2][q] > k, 0, "not lists"),
    "unknown": (lambda b, h, q, k: np.i0(q) > k, 0, "numpy.i0 has no counterpart"),
    "method": (lambda b, h, q, k: q.sort(), 0, ".sort has no counterpart"),
    "reduce": (lambda b, h, q, k: np.add.reduce(q), 0, "numpy.add.reduce"),
    "index": (lambda b, h, q, k: TABLE[6] == k, 0, "index 6 is out of range: axis 0 has 6"),
    "negative_index": (lambda b, h, q, k: TABLE[-7] == k, 0, "index -7 is out of range"),
    "too_many_indices": (lambda b, h, q, k: TABLE[q, k] == 1, 0, "1 dimensions but 2 indices"),
    "float_index": (lambda b, h, q, k: TABLE[q * 0.5] == 1, 0, "a float is no index"),
    "missing_indices": (lambda b, h, q, k: CUBE[q] == k, 0, "2 indices of a tensor are missing"),
    "missing_index": (lambda b, h, q, k: (CUBE[b, h] > 0).any(), 0, "at most 256 are unrolled"),
    "new_shape": (lambda b, h, q, k: q.new_ones((2,)), 0, r"new_ones of shape \(2,\)"),
    "reshaped": (lambda b, h, q, k: TABLE.reshape(2, 3)[q, k] > 1, 0, ".reshape of a whole array"),
    "slice": (lambda b, h, q, k: TABLE[1:] == q, 0, "without slices"),
    "whole": (lambda b, h, q, k: q == TABLE, 0, r"a tensor of shape \(6,\)"),
    "nothing": (lambda b, h, q, k: None, 0, "returns nothing"),
    "float_mask": (lambda b, h, q, k: q * 0.5, 0, "gives a bool"),
    "few_arguments": (lambda b, h, q: q, 0, r"called with \(b, h, q_idx, kv_idx\)"),
    "many_arguments": (lambda s, b, h, q, k: q > k, 0, "missing a required argument"),
    "zero": (lambda b, h, q, k: q // 0 == k, 0, "division by zero"),
    "shift": (lambda b, h, q, k: q << 40 == k, 0, "from 0 to 31"),
    "large": (lambda b, h, q, k: q > 2**31, 0, "beyond 32 bits"),
    "nan": (lambda b, h, q, k: q > float("nan"), 0, "NaN"),
    "text": (lambda b, h, q, k: q == "a", 0, "builtins.str is no value"),
    "float_bits": (lambda b, h, q, k: (q * 0.5) & 1, 0, "bit operations take ints"),
    "arity": (lambda b, h, q, k: fmhagen.where(q > k, q), 0, "takes 3 operands, not 2"),
    "dtype": (lambda b, h, q, k: q.astype(np.complex64) > k, 0, "is no type of a value"),
    "helper": (lambda b, h, q, k: helper(q), -7, "known only in the kernel|no counterpart"),
}


@pytest.mark.parametrize("name", list(BAD))
def test_errors_point_at_the_line(name: str) -> None:
    function, offset, message = BAD[name]
    with pytest.raises(TraceError, match=message) as caught:
        MaskMod(function)
    assert caught.value.path == __file__
    if name == "helper":
        assert caught.value.line == _line(helper) + 1
    else:
        assert caught.value.line == _line(function) + offset
    assert caught.value.to_dict()["line"] == caught.value.line
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)


class Holder:
    """Something with tensors of its own."""

    def __init__(self) -> None:
        self.table = TABLE.copy()

    def __call__(self, b: Any, h: Any, q: Any, k: Any) -> Any:
        return self.table[q] == self.table[k]

    def method(self, b: Any, h: Any, q: Any, k: Any) -> Any:
        return self.table[q] < k


def test_captures_are_found_wherever_they_are() -> None:
    inner = TABLE * 2
    holder = Holder()

    def nested(b: Any, h: Any, q: Any, k: Any) -> Any:
        def inside(at: Any) -> Any:
            return inner[at] + TABLE[at]

        return inside(q) == inside(k)

    def with_default(b: Any, h: Any, q: Any, k: Any, *, extra: Any = inner) -> Any:
        return extra[q] == k

    def of_several(functions: Any) -> Any:
        return lambda b, h, q, k: functions[0](b, h, q, k) & functions[1](b, h, q, k)

    partial = functools.partial(lambda table, b, h, q, k: table[q] == k, inner)
    assert set(MaskMod(nested).bound) == {"inner", "TABLE"}
    assert list(MaskMod(with_default).bound) == ["extra"]
    assert MaskMod(partial).bound["tensor"] is inner
    assert MaskMod(holder).bound["table"] is holder.table
    assert MaskMod(holder.method).bound["table"] is holder.table
    module = types.ModuleType("module_of_a_user")
    module.table = inner  # type: ignore[attr-defined]
    pair = collections.namedtuple("pair", "first table")(3, inner)
    for owner in (holder, module, pair, types.SimpleNamespace(table=inner, itself=holder)):
        found = MaskMod(lambda b, h, q, k, owner=owner: owner.table[q] < k)
        assert list(found.bound.values()) == [owner.table]
        assert MaskMod(lambda b, h, q, k, owner=owner: owner.table[q] < k) == found
    assert MaskMod(lambda b, h, q, k: holder.method(b, h, q, k)).bound["table"] is holder.table
    both = MaskMod(of_several((nested, with_default)))
    assert {id(tensor) for tensor in both.bound.values()} == {id(inner), id(TABLE)}


def test_equal_functions_are_equal_wherever_they_come_from() -> None:
    limit = 5
    one = MaskMod(lambda b, h, q, k: (q - k) < limit)
    other = MaskMod(lambda batch, head, m, n: (m - n) < 5)
    assert one == other
    assert hash(one) == hash(other)
    assert AttentionSpec(mask_mod=one) == AttentionSpec(mask_mod=other)
    limit = 6
    assert MaskMod(lambda b, h, q, k: (q - k) < limit) != one


def test_captured_values_do_not_matter_for_equality() -> None:
    def make(table: Any) -> MaskMod:
        return MaskMod(lambda b, h, q, k: table[q] == k)

    one, other = make(np.zeros(3, np.int32)), make(np.ones(9, np.int32))
    assert one == other
    assert one.bound["table"] is not other.bound["table"]
    assert make(np.zeros(3, np.int64)) != one


def test_properties_of_captured_tensors_are_declared() -> None:
    table = np.sort(TABLE)
    mask = MaskMod(lambda b, h, q, k: k < table[q], non_decreasing=("table",))
    assert str(mask) == "table: i32[1, non_decreasing]; kv_idx < table[q_idx]"
    with pytest.raises(TraceError, match="captures no tensor tabel"):
        MaskMod(lambda b, h, q, k: k < table[q], non_decreasing=("tabel",))


def test_nodes_are_shared_and_survive_copies() -> None:
    node = MaskMod(lambda b, h, q, k: (q - k < 3) | (q - k > 9)).node
    assert copy.deepcopy(node) is node
    assert pickle.loads(pickle.dumps(node)) is node
    assert build.const(1) is not build.const(1.0)
    assert build.const(0.0) is not build.const(-0.0)
    assert build.const(True) is not build.const(1)
    with pytest.raises(TypeError, match="made by"):
        Node()


def test_mods_do_not_change_and_print_as_what_makes_them() -> None:
    mask = MaskMod(lambda b, h, q, k: TABLE[q] == k)
    assert eval(repr(mask), {"MaskMod": MaskMod}) == mask
    for other in (pickle.loads(pickle.dumps(mask)), copy.deepcopy(mask), copy.copy(mask)):
        assert other == mask
        np.testing.assert_array_equal(other.bound["TABLE"], TABLE)
    assert copy.deepcopy(mask).bound["TABLE"] is not TABLE
    with pytest.raises(AttributeError):
        mask.node = build.TRUE


@pytest.mark.parametrize(
    "text",
    [
        "kv_idx <",
        "kv_idx < score",
        "unknown < kv_idx",
        "table[q_idx] < 3",
        "import os",
        "kv_idx < 3; x = 4",
        "x: f32[1, sorted]; x[q_idx] < 3",
        "x: c64[1]; x[q_idx] < 3",
        "__import__('os').system('true')",
        "(lambda: 3)() < kv_idx",
        "",
        "kv_idx + 0.5",
        "0 < kv_idx < 3",
    ],
)
def test_texts_without_a_meaning_are_refused(text: str) -> None:
    with pytest.raises(InvalidSpecError):
        MaskMod(text)


def test_specs_take_functions_texts_and_mods() -> None:
    by_function = AttentionSpec(mask_mod=lambda b, h, q, k: k <= q)
    by_text = AttentionSpec(mask_mod="kv_idx <= q_idx")
    assert by_function == by_text == AttentionSpec.from_dict(by_text.to_dict())
    assert AttentionSpec.from_toml(by_text.to_toml()) == by_text
    assert AttentionSpec.from_json(by_text.to_json()) == by_text
    assert repr(by_text) == "AttentionSpec(mask_mod=MaskMod('kv_idx <= q_idx'))"


@pytest.mark.parametrize(
    "fields",
    [
        {"name": "q_idx"},
        {"name": "1x"},
        {"name": "x", "dtype": "f64"},
        {"name": "x", "dtype": "bool"},
        {"name": "x", "ndim": 9},
    ],
)
def test_parameters_without_a_meaning_are_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(InvalidSpecError):
        Parameter(**fields)


def test_masks_and_score_functions_join_plain_functions() -> None:
    near = lambda b, h, q, k: q - k < 9  # noqa: E731
    causal = fmhagen.masks.causal()
    assert causal & near == near & causal == MaskMod(lambda b, h, q, k: (k <= q) & (q - k < 9))
    assert near | causal == causal | "q_idx - kv_idx < 9"
    doubled = ScoreMod("score * 2.0").then(lambda s, b, h, q, k: s + k)
    assert doubled == ScoreMod("score * 2.0 + f32(kv_idx)")


@pytest.mark.parametrize(
    ("kind", "given", "message"),
    [
        (MaskMod, 5, "mask_mod='int': must be a function of (b, h, q_idx, kv_idx), a text, or a"),
        (MaskMod, ScoreMod("score"), "mask_mod='ScoreMod': .*; give this one as score_mod"),
        (ScoreMod, MaskMod("kv_idx < 5"), "score_mod='MaskMod': .*; give this one as mask_mod"),
        (MaskMod, TABLE, "mask_mod='ndarray': .*; make one of a tensor by fmhagen.masks.dense"),
        (ScoreMod, TABLE, "make one of a tensor by fmhagen.scores.additive"),
        (MaskMod, types.SimpleNamespace(kv_indices=0), "of a BlockMask give its mask_mod here"),
    ],
)
def test_what_is_no_function_is_refused_with_what_works(
    kind: type, given: object, message: str
) -> None:
    with pytest.raises(InvalidSpecError, match=message.replace("(", r"\(").replace(")", r"\)")):
        kind(given)
