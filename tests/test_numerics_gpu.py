"""Every case of the generator on a GPU, with every schedule, against float64."""

from typing import Any

import pytest
from cases import Case, cases
from emulated import alternatives

from fmhagen.api import Kernel, compile_kernel
from fmhagen.schedule import Schedule
from fmhagen.spec import AttentionSpec

pytestmark = [
    pytest.mark.gpu,
    # A driver whose tensor maps take no stride of 0 makes expanded tensors be copied.
    pytest.mark.filterwarnings("ignore::fmhagen.runtime.tensors.MisalignedTensorWarning"),
]


@pytest.fixture(scope="module")
def kernels() -> dict[Any, Kernel]:
    return {}


def kernel_of(kernels: dict[Any, Kernel], spec: AttentionSpec, schedule: Schedule | None) -> Kernel:
    key = (spec, schedule)
    if key not in kernels:
        kernels[key] = compile_kernel(spec, device="cuda", schedule=schedule)
    return kernels[key]


def poison(shapes: list[tuple[int, ...]], dtypes: list[Any]) -> None:
    """Leave NaN in the blocks that the allocator will give out next."""
    import torch

    held = [
        torch.full(shape, float("nan"), dtype=dtype, device="cuda")
        for shape, dtype in zip(shapes, dtypes, strict=True)
    ]
    del held


def run(kernels: dict[Any, Kernel], case: Case, schedule: Schedule | None) -> None:
    import torch

    q, k, v = (tensor.torch("cuda") for tensor in case.placed())
    kernel = kernel_of(kernels, case.spec, schedule)
    lse_shape = (case.batch, case.heads, case.rows)
    poison([tuple(q.shape), lse_shape], [q.dtype, torch.float32])
    out = torch.full_like(q, float("nan")) if case.seed % 2 else None
    result = kernel(q, k, v, scale=case.scale, out=out, return_lse=case.want_lse)
    o, lse = result if case.want_lse else (result, None)
    torch.cuda.synchronize()
    case.check(o, lse)
    again = kernel(q, k, v, scale=case.scale, return_lse=case.want_lse)
    o_again, lse_again = again if case.want_lse else (again, None)
    assert torch.equal(o.view(torch.int16), o_again.view(torch.int16))
    assert lse is None or torch.equal(lse.view(torch.int32), lse_again.view(torch.int32))


@pytest.mark.parametrize("case", cases(), ids=lambda case: case.name)
def test_o_and_lse_are_right(case: Case, kernels: dict[Any, Kernel]) -> None:
    run(kernels, case, None)


ALTERNATIVES = [
    pytest.param(case, schedule, id=f"schedule{index}-{case.name}")
    for case in cases()[::2]
    for index, schedule in enumerate(alternatives(case.spec, "sm90"), 1)
]


@pytest.mark.parametrize(("case", "schedule"), ALTERNATIVES)
def test_every_schedule_is_right(
    case: Case, schedule: Schedule, kernels: dict[Any, Kernel]
) -> None:
    run(kernels, case, schedule)


@pytest.mark.parametrize("layout", ["bshd", "bhsd"])
@pytest.mark.parametrize("magnitude", [1.0, 60.0])
def test_long_sequences(layout: str, magnitude: float, kernels: dict[Any, Kernel]) -> None:
    """Many key tiles a tile of work and many tiles of work a block."""
    for causal in (False, True):
        spec = AttentionSpec(head_dim=128, causal=causal, layout=layout)
        case = Case(
            spec=spec, batch=2, heads=12, heads_kv=3, rows=1999, keys=3001, magnitude=magnitude
        )
        run(kernels, case, None)


@pytest.mark.parametrize(("batch", "heads", "rows"), [(65537, 8, 4), (1, 71280, 3)])
def test_more_heads_in_all_than_a_grid_dimension_holds(
    batch: int, heads: int, rows: int, kernels: dict[Any, Kernel]
) -> None:
    import torch

    spec = AttentionSpec(head_dim=64)
    generator = torch.Generator("cuda").manual_seed(0)
    q, k, v = (
        torch.randn(
            (batch, rows, heads, 64), dtype=torch.bfloat16, device="cuda", generator=generator
        )
        for _ in range(3)
    )
    o = kernel_of(kernels, spec, None)(q, k, v)
    q, k, v = (tensor.transpose(1, 2).float() for tensor in (q, k, v))
    expected = torch.softmax(q @ k.mT / 8, -1) @ v
    error = (o.transpose(1, 2).float() - expected).abs().max() / expected.abs().max()
    assert error < 1e-2


def test_an_offset_beyond_31_bits(kernels: dict[Any, Kernel]) -> None:
    """Heads and batches that lie more than 2^31 elements apart: a view of a large buffer."""
    import torch

    spec = AttentionSpec(head_dim=64, causal=True)
    memory = torch.empty(2**32 + 2**20, dtype=torch.bfloat16, device="cuda")  # 8 GiB
    shape, strides = (2, 200, 2, 64), (2**31, 64, 2**31 - 2**20, 1)
    tensors, dense = [], []
    for index in range(3):
        view = memory.as_strided(shape, strides, index * 2**16)
        view.copy_(torch.randn(shape, device="cuda"))
        tensors.append(view)
        dense.append(view.contiguous())
    kernel = kernel_of(kernels, spec, None)
    assert torch.equal(kernel(*tensors), kernel(*dense))
