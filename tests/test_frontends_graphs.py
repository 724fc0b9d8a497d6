"""What fmhagen.masks and fmhagen.scores give, in compiled regions of PyTorch, on the emulator."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable

import pytest

pytest.importorskip("torch", reason="PyTorch is not installed")

import torch

import fmhagen.frontends.torch_ops  # noqa: F401
from fmhagen import MaskMod, ScoreMod, dispatch, masks, scores
from fmhagen.errors import TensorError
from fmhagen.frontends import flex

pytestmark = pytest.mark.filterwarnings("default")  # PyTorch's own are its matter
Q = torch.randn(2, 4, 50, 64, generator=torch.Generator().manual_seed(5)).bfloat16()
IDS = torch.arange(50) // 20
SLOPES, TABLE = torch.linspace(0, 1, 4), torch.linspace(-3, 2, 28).reshape(4, 7)
NEAR, PACKED = masks.causal() & masks.document(IDS), masks.documents([0, 7, 33, 50])
ALIBI = scores.alibi(SLOPES)
PREFIXES = torch.tensor([7, 9])


@pytest.fixture(autouse=True)
def _no_graphs_of_other_tests() -> None:
    torch._dynamo.reset()


def attend(q: torch.Tensor, mask: object = None, score: object = None) -> torch.Tensor:
    return flex.flex_attention(q, q, q, score, mask)


def assert_same_in_a_graph(function: Callable[..., torch.Tensor], *given: object) -> None:
    compiled = torch.compile(function, fullgraph=True, backend="aot_eager")
    expected = function(*given)
    assert torch.equal(compiled(*given), expected)
    assert not torch.equal(expected, attend(Q))


@pytest.mark.parametrize(
    "function",
    [
        lambda q: attend(q, NEAR),
        lambda q: attend(q, PACKED, ALIBI),  # the bounds of documents are arrays of NumPy
        lambda q: attend(q, NEAR | masks.not_mask(PACKED)),
        lambda q: attend(q, masks.causal("bottom_right") & masks.sliding_window(left=9)),
        lambda q: attend(q, masks.causal() & masks.document(document_id=IDS)),
        lambda q: attend(q, lambda b, h, m, n: NEAR(b, h, m, n) | (IDS[n] > 1) | (n < 3)),
        lambda q: attend(
            q, NEAR & masks.document(IDS * 0 + 1, name="other"), ALIBI.then(scores.soft_cap(2.0))
        ),
        lambda q: attend(q, None, scores.soft_cap(3.0).then(scores.relative_bias(TABLE))),
        lambda q: attend(q, masks.and_masks(lambda b, h, m, n: n <= m, masks.sliding_window(5))),
        lambda q: attend(q, masks.or_masks(lambda b, h, m, n: n == m, masks.sink_tokens(5))),
        lambda q: attend(q, masks.prefix_lm(5) & masks.prefix_lm(PREFIXES)),
        lambda q: attend(
            q,
            lambda b, h, m, n: torch.isin(n % 7, torch.tensor([1, 3])) | (m == n),
            lambda s, b, h, m, n: (
                torch.atan2(s, m - n + 0.5) * torch.tensor([1.0, 2.0, 3.0, 4.0])[h]
            ),
        ),
        lambda q: attend(q, masks.key_padding([5, 30]) & masks.documents([0, 20, 50])),
    ],
)
def test_mods_stand_in_a_graph(function: Callable[[torch.Tensor], torch.Tensor]) -> None:
    assert_same_in_a_graph(function, Q)


def test_parameters_of_mods_in_a_graph() -> None:
    near = MaskMod("w: i32; q_idx - kv_idx < w")
    for mask, params in (
        (near & NEAR, {"w": 7}),
        (NEAR, {"document_id": IDS * 0}),  # in the place of what it captured
    ):
        assert_same_in_a_graph(
            lambda q, mask=mask, params=params: dispatch.attention(
                q, q, q, layout="bhsd", mask_mod=mask, params=params
            ),
            Q,
        )


def test_a_graph_serves_mods_of_one_expression_and_all_lengths() -> None:
    from torch._dynamo.testing import CompileCounterWithBackend

    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(attend, fullgraph=True, backend=counter)
    for mask, count in (
        (NEAR, 1),
        (masks.causal() & masks.document(IDS // 2), 1),  # another object and other ids
        (masks.sliding_window(3), 2),
        (masks.causal() & masks.document(IDS * 0), 2),
    ):
        assert torch.equal(compiled(Q, mask), attend(Q, mask))
        assert counter.frame_count == count
    counter = CompileCounterWithBackend("aot_eager")
    inside = lambda q, ids: attend(q, masks.document(ids) & masks.causal())  # noqa: E731
    compiled = torch.compile(inside, fullgraph=True, backend=counter)
    for length in (50, 37, 41):
        q, ids = Q[:, :, :length], torch.arange(length) // 9
        assert torch.equal(compiled(q, ids), inside(q, ids))
    assert counter.frame_count <= 2


def test_mods_under_vmap_in_a_graph() -> None:
    many, ids = torch.stack([Q, Q * 2]), torch.stack([IDS, IDS // 2])
    inside = lambda q, i: attend(q, masks.document(i, name="mapped") | NEAR)  # noqa: E731
    compiled = torch.compile(torch.vmap(inside), fullgraph=True, backend="aot_eager")
    expected = torch.stack([inside(q, i) for q, i in zip(many, ids, strict=True)])
    assert torch.equal(compiled(many, ids), expected)
    for _ in range(2):
        with pytest.raises(TensorError, match=r"no memory of its own.*torch_ops.Attention"):
            torch.vmap(attend)(many)


def test_what_is_to_be_imported_first() -> None:
    """The front end imports the operators when a graph meets it; what is called before does not."""
    lines = (
        "import torch; from fmhagen import masks",
        "from fmhagen.frontends.flex import flex_attention",
        "q = torch.randn(1, 2, 20, 64).bfloat16(); mask = masks.causal()",
        "compiled = lambda f: torch.compile(f, fullgraph=True, backend='eager')",
        "print(compiled(lambda q: flex_attention(q, q, q, block_mask=mask))(q).shape)",
    )
    late = lines[-1].replace("=mask)", "=masks.causal())")
    for last, text in ((lines[-1], "torch.Size([1, 2, 20, 64])"), (late, "torch_ops before")):
        command = [sys.executable, "-W", "ignore", "-c", "\n".join((*lines[:-1], last))]
        found = subprocess.run(command, capture_output=True, text=True, check=False)
        assert text in found.stdout + found.stderr


def test_what_ends_a_graph_and_works_behind_its_end() -> None:
    edges = torch.tensor([0, 20, 50])
    for function in (
        lambda q: attend(q, ~PACKED),  # PyTorch traces no ~ of objects
        lambda q: attend(q, MaskMod(lambda b, h, m, n: n <= m)),
        lambda q: attend(q, masks.documents(edges), ScoreMod(lambda s, b, h, m, n: s * 2)),
    ):
        expected = function(Q)
        assert torch.equal(torch.compile(function, backend="aot_eager")(Q), expected)
    last = torch.compile(function, fullgraph=True, backend="aot_eager")
    torch._dynamo.reset()
    with pytest.raises(Exception, match="documents of a tensor are not made in a compiled region"):
        last(Q)
