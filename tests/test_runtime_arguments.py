"""Arguments besides q, k and v: what reaches the parameter block, and what is refused by name."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from fmhagen.api import lower
from fmhagen.compile.binary import Binary
from fmhagen.errors import FmhagenError, TensorError
from fmhagen.plan.attention import ParamField, Plan, TensorMapPlan, pack_params
from fmhagen.runtime.alignment import aligned_numpy
from fmhagen.runtime.arguments import Arguments
from fmhagen.runtime.base import Memories
from fmhagen.runtime.calls import Calls
from fmhagen.runtime.emulator import encode_tensor_map
from fmhagen.runtime.launch_values import PACKED_ROWS, Operand, Value
from fmhagen.runtime.launcher import Launcher
from fmhagen.runtime.tensors import Memory, TensorView
from fmhagen.spec import AttentionSpec

BF16 = np.dtype(ml_dtypes.bfloat16)
DENSE = AttentionSpec(head_dim=64)
PACKED = AttentionSpec(head_dim=64, varlen=True)
SINK = AttentionSpec(head_dim=64, sink=True)

FIELDS = (
    ("TensorMap", "q_map", ""),
    ("TensorMap", "k_map", ""),
    ("u16*", "o", ""),
    ("f32*", "lse", ""),
    ("f32", "scale_log2", ""),
    *(("u32", name, "") for name in ("batch", "seqlen_q", "seqlen_k", "total_q", "total_k")),
    ("u32", "num_m_tiles", ""),
)
LENGTHS = ("cu_seqlens_q", "cu_seqlens_k", "seqused_q", "seqused_k")


def plan_of(spec: AttentionSpec) -> Plan:
    """A plan of a spec with the fields that its kernels will have; nothing is ever compiled."""
    fields = FIELDS
    if spec.varlen:
        fields += tuple(("const i32*", name, "") for name in LENGTHS)
    if spec.sink:
        fields += (("const f32*", "sinks", ""),)
    params, size = pack_params(fields)
    base = lower(DENSE)
    maps = tuple(
        dataclasses.replace(m, box=(*m.box, *((1,) if spec.varlen else ())))
        for m in base.tensor_maps
        if m.field in ("q_map", "k_map")
    )
    return dataclasses.replace(base, spec=spec, params=params, params_bytes=size, tensor_maps=maps)


@dataclasses.dataclass
class Launch:
    """One launch as a backend sees it: values by field, and the memory."""

    values: dict[str, Value]
    memories: Memories


class Recorder:
    """A backend in host memory that keeps what it is given."""

    memory = Memory.HOST

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.launches: list[Launch] = []

    def compute_units(self, device: int) -> int:
        return 3

    def require(self, target: str) -> None:
        pass

    def load(self, binary: Binary, plan: Plan, device: int) -> Recorder:
        return self

    def bind(
        self, values: list[Value], blocks: int, stream: int, memories: Memories
    ) -> Callable[[], object]:
        named = {f.name: value for f, value in zip(self.plan.params, values, strict=True)}
        return lambda: self.launches.append(Launch(named, memories))

    def settle(self, launch: Callable[[], object], code: object) -> None:
        raise AssertionError(code)

    def map_encoder(self, map_plan: TensorMapPlan, operand: Operand) -> Callable[[int], bytes]:
        return lambda address: encode_tensor_map(
            address=address,
            element_bytes=2,
            sizes=operand.map_sizes,
            stride_bytes=operand.map_strides_bytes,
            box=map_plan.box,
            swizzle_bytes=0,
        )

    def unfit(self, plan: Plan, operand: Operand) -> str | None:
        return None

    def stream(self, q: TensorView) -> int:
        return 0

    def is_capturing(self, device: int, stream: int) -> bool:
        return False


class Setup:
    """Calls of a spec whose launches are kept."""

    def __init__(self, spec: AttentionSpec) -> None:
        plan = plan_of(spec)
        self.backend = Recorder(plan)
        launcher = Launcher(plan, self.backend, lambda: None)  # type: ignore[arg-type,return-value]
        self.call = Calls(spec, lambda q: launcher)

    @property
    def last(self) -> Launch:
        return self.backend.launches[-1]


def rows(count: int, heads: int, *, depth: int = 64) -> Any:
    return aligned_numpy((count, heads, depth), BF16)


def packed(q: int = 7, k: int = 11, heads: int = 4, heads_kv: int = 2) -> tuple[Any, Any, Any]:
    return rows(q, heads), rows(k, heads_kv), rows(k, heads_kv)


def offsets(*ends: int, dtype: Any = np.int32) -> Any:
    return np.array((0, *ends), dtype)


def map_of(encoded: Value) -> tuple[int, tuple[int, ...], tuple[int, ...]]:
    """Return base, sizes and strides of a map of the emulator."""
    assert isinstance(encoded, bytes)
    words = np.frombuffer(encoded, np.uint64)
    return int(words[1]), tuple(map(int, words[4:9])), tuple(map(int, words[9:13]))


def field(plan: Plan, name: str) -> ParamField:
    return next(f for f in plan.params if f.name == name)


# ---- packed sequences ----


def test_packed_sequences_reach_the_block() -> None:
    setup = Setup(PACKED)
    q, k, v = packed()
    ends_q, ends_k, used = offsets(3, 3, 7), offsets(4, 6, 11), np.array([4, 0, 5], np.int32)
    o, lse = setup.call(
        *(q, k, v, None, None, True),
        {
            "cu_seqlens_q": ends_q,
            "cu_seqlens_k": ends_k,
            "seqused_k": used,
            "max_seqlen_q": 4,
            "max_seqlen_k": 5,
        },
    )
    assert (o.shape, lse.shape, lse.dtype) == ((7, 4, 64), (4, 7), np.float32)
    values = setup.last.values
    for name, wanted in {
        "batch": 3,
        "seqlen_q": 4,
        "seqlen_k": 5,
        "total_q": 7,
        "total_k": 11,
        "num_m_tiles": 1,
        "cu_seqlens_q": ends_q.ctypes.data,
        "cu_seqlens_k": ends_k.ctypes.data,
        "seqused_q": 0,
        "seqused_k": used.ctypes.data,
        "o": o.ctypes.data,
        "lse": lse.ctypes.data,
    }.items():
        assert values[name] == wanted, name
    names = [tensor.name for tensor in setup.last.memories.inputs]
    assert names == ["q", "k", "v", "cu_seqlens_q", "cu_seqlens_k", "seqused_k"]
    assert [tensor.name for tensor in setup.last.memories.outputs] == ["out", "lse"]
    assert setup.last.memories.is_complete


def test_a_map_of_packed_rows_ends_where_any_sequence_ends() -> None:
    """Row `2^30 - length + m` at `end` is row m of a sequence, whose end is the map's."""
    setup = Setup(PACKED)
    _, k, v = packed()
    wide = rows(7, 8)
    setup.call(wide[:, ::2], k, v, extras={"cu_seqlens_q": offsets(7), "cu_seqlens_k": offsets(11)})
    for name, tensor, total in (("q_map", wide[:, ::2], 7), ("k_map", k, 11)):
        base, sizes, strides = map_of(setup.last.values[name])
        row, head = tensor.strides[0], tensor.strides[1]
        assert base == tensor.ctypes.data
        assert sizes == (64, PACKED_ROWS, tensor.shape[1], total + 1, PACKED_ROWS + 1)
        assert strides == (row, head, row, 2**34 - row)
        for start, end in ((0, 3), (3, 5), (5, 5), (5, total)):
            for m in range(end - start):
                coordinate = PACKED_ROWS - (end - start) + m
                assert coordinate < sizes[1]
                address = base + coordinate * row + end * row + PACKED_ROWS * strides[3]
                assert address % 2**64 == tensor.ctypes.data + (start + m) * row


@pytest.mark.parametrize("layout", ["bshd", "bhsd"])
def test_packed_tensors_have_the_layout_without_its_batch(layout: str) -> None:
    setup = Setup(dataclasses.replace(PACKED, layout=layout))
    q, k, v = packed()
    if layout == "bhsd":
        q, k, v = (np.ascontiguousarray(x.transpose(1, 0, 2)) for x in (q, k, v))
    o = setup.call(q, k, v, extras={"cu_seqlens_q": offsets(7), "cu_seqlens_k": offsets(11)})
    assert o.shape == q.shape
    assert setup.last.values["total_q"] == 7
    with pytest.raises(TensorError, match=r"q=.* must have three dimensions"):
        setup.call(q[None], k, v, extras={"cu_seqlens_q": offsets(7), "cu_seqlens_k": offsets(11)})


def test_without_max_seqlen_a_sequence_may_have_every_row() -> None:
    setup = Setup(PACKED)
    q, k, v = packed(q=300)
    extras = {"cu_seqlens_q": offsets(100, 300), "cu_seqlens_k": offsets(4, 11)}
    setup.call(q, k, v, extras=extras)
    assert setup.last.values["seqlen_q"] == 300
    setup.call(q, k, v, extras={**extras, "max_seqlen_q": 1000, "max_seqlen_k": 9})
    assert setup.last.values["seqlen_q"] == 300
    assert setup.last.values["seqlen_k"] == 9


def test_no_keys_at_all_still_have_an_address_and_one_row() -> None:
    setup = Setup(PACKED)
    q, k, v = packed(k=0)
    setup.call(q, k, v, extras={"cu_seqlens_q": offsets(3, 7), "cu_seqlens_k": offsets(0, 0)})
    base, sizes, _ = map_of(setup.last.values["k_map"])
    assert setup.last.values["total_k"] == 1
    assert sizes[1:4] == (PACKED_ROWS, 2, 2)
    assert base == q.ctypes.data


@pytest.mark.parametrize("ends", [(), (0,), (0, 0)])
def test_nothing_to_compute_launches_nothing(ends: tuple[int, ...]) -> None:
    setup = Setup(PACKED)
    q, k, v = packed(q=0)
    extras = {"cu_seqlens_q": offsets(*ends), "cu_seqlens_k": offsets(*ends)}
    o, lse = setup.call(q, k[:0], v[:0], None, None, True, extras)
    assert (o.shape, lse.shape) == ((0, 4, 64), (4, 0))
    assert setup.backend.launches == []


@pytest.mark.parametrize("dtype", [np.int64, np.int32])
def test_offsets_are_converted_and_never_reinterpreted(dtype: Any) -> None:
    setup = Setup(PACKED)
    q, k, v = packed()
    strided = np.zeros((4, 3), dtype)
    strided[:, 1] = (0, 2, 5, 7)
    setup.call(
        *(q, k, v),
        extras={"cu_seqlens_q": strided[:, 1], "cu_seqlens_k": offsets(1, 2, 11, dtype=dtype)},
    )
    read = {t.name: t for t in setup.last.memories.inputs}
    for name, wanted in (("cu_seqlens_q", (0, 2, 5, 7)), ("cu_seqlens_k", (0, 1, 2, 11))):
        assert read[name].dtype == "int32"
        assert setup.last.values[name] == read[name].address
        assert tuple(read[name].tensor) == wanted


def refused(setup: Setup, tensors: tuple[Any, Any, Any], match: str, **extras: Any) -> None:
    with pytest.raises(TensorError, match=match):
        setup.call(*tensors, extras=extras)
    assert setup.backend.launches == []


def test_offsets_without_a_meaning_are_refused() -> None:
    setup, tensors = Setup(PACKED), packed()
    good = {"cu_seqlens_q": offsets(3, 7), "cu_seqlens_k": offsets(4, 11)}
    for name, bad, match in (
        ("cu_seqlens_q", np.array([1, 3, 7], np.int32), "the first offset must be 0"),
        ("cu_seqlens_q", offsets(3, 6), "last offset must be the rows of q, 7"),
        ("cu_seqlens_k", offsets(4, 20), "cu_seqlens_k=20: the last offset must be the rows of k"),
        ("cu_seqlens_k", offsets(12, 11), "offset 2 must not be below the one before it, 12"),
        ("cu_seqlens_k", offsets(11), r"must have the shape \(B \+ 1,\) = \(3,\)"),
        ("cu_seqlens_q", offsets(3, 7).astype(np.float32), "element type int32 or int64"),
        ("cu_seqlens_q", [0, 3, 7], "must be a tensor of int32"),
        ("cu_seqlens_q", offsets(3, 7)[None], "must have the shape"),
        ("cu_seqlens_q", np.zeros(0, np.int32), "must have at least one entry"),
        ("cu_seqlens_q", offsets(), "no sequence, but q has 7 rows"),
        ("cu_seqlens_k", None, "cu_seqlens_k=None: must be given"),
        ("seqused_k", np.array([5, 7], np.int32), "seqused_k=5: sequence 0 has 4 rows"),
        ("seqused_q", np.array([3, -1], np.int32), "seqused_q=-1: sequence 1 has 4 rows"),
        ("seqused_q", np.array([3], np.int32), r"must have the shape \(B,\) = \(2,\)"),
        ("max_seqlen_q", 3, "max_seqlen_q=3: must be at least the longest sequence, 4"),
        ("max_seqlen_k", 6, "max_seqlen_k=6: must be at least the longest sequence, 7"),
        ("max_seqlen_k", -1, "must be from 0"),
        ("max_seqlen_k", 7.0, "must be a whole number"),
        ("max_seqlen_k", True, "must be a whole number"),
    ):
        refused(setup, tensors, match, **{**good, name: bad})


def test_a_used_length_may_be_all_that_max_seqlen_covers() -> None:
    setup = Setup(PACKED)
    setup.call(
        *packed(),
        extras={
            "cu_seqlens_q": offsets(3, 7),
            "cu_seqlens_k": offsets(4, 11),
            "seqused_q": np.array([3, 2], np.int32),
            "max_seqlen_q": 3,
        },
    )
    assert not setup.last.memories.is_complete  # rows 5 and 6 of O are nobody's


def test_offsets_are_read_unless_told_otherwise() -> None:
    setup = Setup(PACKED)
    bad = {"cu_seqlens_q": offsets(3, 6), "cu_seqlens_k": offsets(4, 11)}
    setup.call(*packed(), extras={**bad, "validate": False})
    assert not setup.last.memories.is_complete
    with pytest.raises(TensorError, match="last offset"):
        setup.call(*packed(), extras={**bad, "validate": True})


def test_numbers_may_be_scalars_of_a_framework() -> None:
    setup = Setup(PACKED)
    for number in (np.int64(4), np.array(4), 4):
        setup.call(
            *packed(),
            extras={
                "cu_seqlens_q": offsets(3, 7),
                "cu_seqlens_k": offsets(4, 11),
                "max_seqlen_q": number,
            },
        )
        assert setup.last.values["seqlen_q"] == 4


# ---- sinks ----


@pytest.mark.parametrize("dtype", [np.float32, np.float16, BF16])
def test_sinks_reach_the_block_in_fp32(dtype: Any) -> None:
    setup = Setup(SINK)
    q = aligned_numpy((1, 5, 4, 64), BF16)
    sinks = np.array([0.5, -1, 2, 3], dtype)
    setup.call(q, q, q, extras={"sinks": sinks})
    read = setup.last.memories.inputs[3]
    assert (read.name, read.dtype, list(read.tensor)) == ("sinks", "fp32", [0.5, -1, 2, 3])
    assert setup.last.values["sinks"] == read.address
    assert (read.address == sinks.ctypes.data) == (dtype == np.float32)


def test_sinks_of_a_wrong_kind_are_refused() -> None:
    setup = Setup(SINK)
    q = aligned_numpy((1, 5, 4, 64), BF16)
    for bad, match in (
        (np.zeros(3, np.float32), r"must have the shape \(H,\) = \(4,\)"),
        (np.zeros((4, 1), np.float32), "must have the shape"),
        (np.zeros(4, np.int32), "must have the element type fp32 or bf16 or fp16"),
        (None, "sinks=None: must be given"),
    ):
        refused(setup, (q, q, q), match, sinks=bad)


# ---- what a kernel does not take ----


def test_an_argument_that_the_spec_does_not_ask_for_is_refused() -> None:
    setup = Setup(DENSE)
    q = aligned_numpy((1, 5, 4, 64), BF16)
    refused(setup, (q, q, q), "takes no such argument; a spec with sink=True", sinks=np.zeros(4))
    refused(setup, (q, q, q), "a spec with varlen=True takes it", max_seqlen_q=3)
    refused(setup, (q, q, q), "blocks='x'", blocks="x")
    setup.call(q, q, q, extras={"sinks": None, "max_seqlen_q": None})  # not given


def test_errors_are_data() -> None:
    with pytest.raises(FmhagenError) as caught:
        Setup(PACKED).call(*packed())
    found = caught.value.to_dict()
    assert (found["error"], found["field"]) == ("TensorError", "cu_seqlens_q")


def test_fields_come_in_a_fixed_order() -> None:
    both = AttentionSpec(head_dim=64, varlen=True, sink=True)
    assert Arguments(both).fields == ("sinks", *LENGTHS)
    assert Arguments(DENSE).fields == ()
