"""Parameters of mask and score functions: what reaches the parameter block, and what is refused."""

from __future__ import annotations

import dataclasses
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from test_runtime_arguments import BF16, Recorder, Setup, offsets, packed, plan_of

from fmhagen.errors import TensorError
from fmhagen.expr.mods import MaskMod, ScoreMod
from fmhagen.lowering.language import lower_language
from fmhagen.plan.attention import pack_params
from fmhagen.runtime.alignment import aligned_numpy
from fmhagen.runtime.calls import Calls
from fmhagen.runtime.launcher import Launcher
from fmhagen.spec import AttentionSpec


def setup_of(spec: AttentionSpec) -> Setup:
    """Calls of a spec whose kernels have the fields of its functions."""
    plan = plan_of(dataclasses.replace(spec, mask_mod=None, score_mod=None, alibi=False))
    language = lower_language(spec)
    fields = tuple((f.ctype, f.name, f.comment) for f in plan.params) + language.fields
    params, size = pack_params(fields)
    plan = dataclasses.replace(plan, spec=spec, params=params, params_bytes=size)
    setup = Setup.__new__(Setup)
    setup.backend = Recorder(plan)
    launcher = Launcher(plan, setup.backend, lambda: None)  # type: ignore[arg-type,return-value]
    setup.call = Calls(spec, lambda q: launcher)
    return setup


def score(text: str, **changes: Any) -> AttentionSpec:
    return AttentionSpec(head_dim=64, score_mod=ScoreMod(text), **changes)


def dense(keys: int = 9) -> tuple[Any, Any, Any]:
    q = aligned_numpy((2, 5, 4, 64), BF16)
    k = aligned_numpy((2, keys, 4, 64), BF16)
    return q, k, k


def refused(setup: Setup, match: str, **extras: Any) -> None:
    with pytest.raises(TensorError, match=match):
        setup.call(*dense(), extras=extras)
    assert setup.backend.launches == []


def test_a_tensor_and_its_strides_reach_the_block() -> None:
    setup = setup_of(score("bias: f32[3]; score + bias[b, h, kv_idx]"))
    bias = np.zeros((2, 4, 3, 9), np.float32)[:, :, 1]
    setup.call(*dense(), extras={"params": {"bias": bias}})
    values = setup.last.values
    assert values["arg_bias"] == bias.ctypes.data
    assert [values[f"arg_bias_stride_{axis}"] for axis in range(3)] == [108, 27, 1]
    assert [tensor.name for tensor in setup.last.memories.inputs[3:]] == ["params['bias']"]


def test_an_axis_of_one_element_is_repeated() -> None:
    setup = setup_of(score("bias: f32[3]; score + bias[b, h, kv_idx]"))
    setup.call(*dense(), extras={"params": {"bias": np.zeros((1, 1, 9), np.float32)}})
    assert [setup.last.values[f"arg_bias_stride_{axis}"] for axis in range(3)] == [0, 0, 1]


def test_captured_tensors_are_bound_by_default_and_given_ones_come_first() -> None:
    captured, other = np.zeros(4, np.float32), np.ones(4, np.float32)
    spec = AttentionSpec(head_dim=64, score_mod=lambda s, b, h, q, k: s * captured[h])
    setup = setup_of(spec)
    setup.call(*dense())
    assert setup.last.values["arg_captured"] == captured.ctypes.data
    setup.call(*dense(), extras={"params": {"captured": other}})
    assert setup.last.values["arg_captured"] == other.ctypes.data


def test_numbers_are_passed_by_value() -> None:
    setup = setup_of(score("w: f32; n: i32; where(kv_idx < n, score * w, score)"))
    for w, n in ((0.5, 3), (np.float32(0.5), np.int64(3)), (np.array(0.5), np.array(3))):
        setup.call(*dense(), extras={"params": {"w": w, "n": n}})
        assert (setup.last.values["arg_w"], setup.last.values["arg_n"]) == (0.5, 3)
    setup.call(*dense(), extras={"params": {"w": float("-inf"), "n": -1}})
    assert setup.last.values["arg_w"] == -np.inf


@pytest.mark.parametrize(
    ("n", "match"),
    [
        (2.5, "must be a whole number"),
        (True, "must be a whole number"),
        (2**31, "must fit in 32 bits"),
        (np.zeros(2, np.int32), "must be one number"),
        (None, r"params\['n'\]=None: must be given: n: i32"),
    ],
)
def test_numbers_of_a_wrong_kind_are_refused(n: Any, match: str) -> None:
    refused(setup_of(score("n: i32; score + n")), match, params={"n": n})


def test_slopes_of_heads_serve_every_sequence() -> None:
    setup = setup_of(AttentionSpec(head_dim=64, alibi=True))
    one = np.arange(4, dtype=np.float32)
    setup.call(*dense(), extras={"alibi_slopes": one})
    values = setup.last.values
    assert values["arg_alibi_slopes"] == one.ctypes.data
    assert (values["arg_alibi_slopes_stride_0"], values["arg_alibi_slopes_stride_1"]) == (0, 1)
    each = np.zeros((2, 4), ml_dtypes.bfloat16)
    setup.call(*dense(), extras={"alibi_slopes": each})  # converted to fp32
    assert setup.last.memories.inputs[3].dtype == "fp32"
    assert setup.last.values["arg_alibi_slopes_stride_0"] == 4
    for bad, match in (
        (
            np.zeros(3, np.float32),
            r"alibi_slopes=.*must have the shape \(H,\) or \(B, H\), 4 heads",
        ),
        (np.zeros(8, np.float32), "must have the shape"),  # a slice of the heads is to be meant
        (np.zeros((4, 1), np.float32), "must have the shape"),
        (np.zeros((3, 2, 4), np.float32), "must have 2 dimensions"),
        (np.zeros(4, np.int32), "must have the element type fp32 or bf16"),
        (None, "alibi_slopes=None: must be given"),
    ):
        refused(setup_of(AttentionSpec(head_dim=64, alibi=True)), match, alibi_slopes=bad)


@pytest.mark.parametrize(
    ("text", "shape", "match"),
    [
        ("x: f32[2]; score + x[b, kv_idx]", (1, 9), None),
        ("x: f32[2]; score + x[b, kv_idx]", (3, 20), None),
        ("x: f32[2]; score + x[b, kv_idx]", (2, 8), "axis 1 is indexed by kv_idx: it needs Sk"),
        (
            "x: f32[1]; score + x[q_idx]",
            (4,),
            "axis 0 is indexed by q_idx: .* at least 5",
        ),
        ("x: f32[1]; score + x[3]", (3,), "axis 0 is indexed by 3, at least 4 elements"),
        ("x: f32[1]; score + x[3]", (1,), "at least 4 elements"),
        ("x: f32[1]; score + x[kv_idx // 2]", (1,), None),
        ("x: f32[1]; score + x[kv_idx // 2]", (0,), "at least 1 element"),
        ("x: f32[2]; score + x[b, h]", (4,), "must have 2 dimensions"),
    ],
)
def test_a_tensor_must_reach_as_far_as_its_indices(
    text: str, shape: tuple[int, ...], match: str | None
) -> None:
    setup = setup_of(score(text))
    params = {"x": np.zeros(shape, np.float32)}
    if match is None:
        setup.call(*dense(), extras={"params": params})
        assert len(setup.backend.launches) == 1
    else:
        refused(setup, match, params=params)


@pytest.mark.parametrize(
    ("declared", "given", "fits"),
    [
        ("f32", np.float64, True),
        ("f32", np.int32, False),
        ("f16", np.float16, True),
        ("f16", np.float32, False),
        ("bf16", np.float16, False),
        ("i32", np.int64, True),
        ("i32", np.float32, False),
        ("i64", np.int32, True),
        ("u8", np.bool_, True),
        ("bool", np.bool_, True),
        ("bool", np.int32, False),
    ],
)
def test_element_types_are_converted_only_where_no_value_changes(
    declared: str, given: Any, fits: bool
) -> None:
    body = "where(x[kv_idx], score, 0.0)" if declared == "bool" else "score + x[kv_idx]"
    setup = setup_of(score(f"x: {declared}[1]; {body}"))
    params = {"x": np.arange(9).astype(given)}
    if fits:
        setup.call(*dense(), extras={"params": params})
        read = setup.last.memories.inputs[3]
        assert np.array_equal(read.tensor, params["x"])
    else:
        refused(setup, "must have the element type", params=params)


def test_parameters_that_nobody_reads_are_refused() -> None:
    setup = setup_of(score("w: f32; score * w"))
    refused(setup, r"params\['v'\]=1: the mask and score functions read", params={"v": 1, "w": 1})
    refused(setup, "must be a dict", params=3)
    plain = Setup(AttentionSpec(head_dim=64))
    with pytest.raises(TensorError, match="a spec with a mask_mod or score_mod takes them"):
        plain.call(*dense(), extras={"params": {"w": 1}})


def test_a_parameter_may_have_the_name_of_an_argument() -> None:
    setup = setup_of(score("sinks: f32[1]; score + sinks[h]", sink=True))
    own, other = np.zeros(4, np.float32), np.ones(4, np.float32)
    setup.call(*dense(), extras={"sinks": own, "params": {"sinks": other}})
    assert setup.last.values["sinks"] == own.ctypes.data
    assert setup.last.values["arg_sinks"] == other.ctypes.data


def test_positions_of_packed_sequences_are_bounded_by_max_seqlen() -> None:
    spec = AttentionSpec(
        head_dim=64, varlen=True, mask_mod=MaskMod("x: bool[1]; x[q_idx] & (kv_idx >= 0)")
    )
    setup = setup_of(spec)
    extras = {
        "cu_seqlens_q": offsets(3, 7),
        "cu_seqlens_k": offsets(4, 11),
        "params": {"x": np.ones(4, np.bool_)},
    }
    with pytest.raises(TensorError, match="it needs Sq, at least 7"):
        setup.call(*packed(), extras=extras)
    setup.call(*packed(), extras={**extras, "max_seqlen_q": 4})
    assert len(setup.backend.launches) == 1


def test_a_captured_array_is_copied_beside_q_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A NumPy array in a function's closure serves Q of any framework and device."""
    copies = []

    def beside(name: str, value: Any, q: Any) -> Any:
        copies.append(value.copy())
        return copies[-1]

    monkeypatch.setattr("fmhagen.runtime.captures.beside", beside)
    bias = np.arange(9, dtype=np.float32)
    setup = setup_of(
        AttentionSpec(
            head_dim=64,
            score_mod=ScoreMod("bias: f32[1]; score + bias[kv_idx]", bound={"bias": bias}),
        )
    )
    for _ in range(3):
        setup.call(*dense(), extras={"validate": False})
        assert setup.last.values["arg_bias"] == copies[0].ctypes.data
    assert len(copies) == 1
    given = np.ones(9, np.float32)
    setup.call(*dense(), extras={"params": {"bias": given}})
    assert setup.last.values["arg_bias"] == given.ctypes.data
