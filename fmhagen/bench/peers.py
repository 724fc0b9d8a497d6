"""Peers: adapters of other people's kernels. They are tools of a measurement, never dependencies.

An adapter says what to install where it is missing, what it does not do, and turns a set of
inputs in bshd into a call that gives O in bshd.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from fmhagen.bench.caches import caches_of
from fmhagen.bench.workloads import Workload
from fmhagen.errors import InvalidSpecError
from fmhagen.records import closest
from fmhagen.spec import DType

Call = Callable[[int], Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Peer:
    """One implementation to be compared with.

    Attributes:
        name: as in `--peers`.
        title: its full name.
        module: what must be importable.
        install: what to install where it is not.
        refuse: why it does not do a workload, or None.
        prepare: (torch, workload, sets) to a call on the number of a set.
        reads_caches: it also prepares calls over a key/value cache.
    """

    name: str
    title: str
    module: str
    install: str
    refuse: Callable[[Workload], str | None]
    prepare: Callable[[Any, Workload, Sequence[Any]], Call]
    reads_caches: bool = False

    def refusal(self, workload: Workload) -> str | None:
        """Return why it does not do a workload, or None."""
        if workload.spec.kv_cache and not self.reads_caches:
            return "it is not measured over a key/value cache"
        return self.refuse(workload)

    def missing(self) -> str | None:
        """Return why it cannot be used here and what to install, or None."""
        try:
            importlib.import_module(self.module)
        except Exception as error:
            return f"{self.title}: {type(error).__name__}: {error}; install: {self.install}"
        return None

    def version(self) -> str | None:
        """Return the version of its package, if that is known."""
        from importlib import metadata

        root = self.module.partition(".")[0]
        names = metadata.packages_distributions().get(root, ())
        return ", ".join(f"{name} {metadata.version(name)}" for name in sorted(set(names))) or None


def find_peers(names: Sequence[str]) -> tuple[Peer, ...]:
    """Return peers by name.

    Raises:
        InvalidSpecError: there is no such peer.
    """
    known = {peer.name: peer for peer in PEERS}
    for name in names:
        if name not in known:
            limit = "must be among " + ", ".join(known)
            raise InvalidSpecError("peers", name, limit, closest(name, tuple(known)))
    return tuple(known[name] for name in dict.fromkeys(names))


def _first(result: Any) -> Any:
    return result[0] if isinstance(result, tuple | list) else result


def _top_left(workload: Workload) -> bool:
    return workload.spec.causal and workload.spec.anchor == "top_left"


def _flash_refuses(workload: Workload) -> str | None:
    if _top_left(workload) and workload.seqlen_q != workload.seqlen_k:
        return "its causal mask is anchored bottom right"
    if workload.spec.kv_dtype not in (None, DType.E4M3):
        return "its 8-bit caches are e4m3"
    return None


def _sdpa_refuses(workload: Workload) -> str | None:
    if workload.spec.causal and not _top_left(workload) and workload.seqlen_q != workload.seqlen_k:
        return "its causal mask is anchored top left"
    return None


def _fa3(torch: Any, workload: Workload, sets: Sequence[Any]) -> Call:
    if workload.spec.kv_cache:
        return _fa3_cache(torch, workload, sets)
    function = importlib.import_module("flash_attn_interface").flash_attn_func
    causal, scale = workload.spec.causal, workload.spec.scale_value
    return lambda i: _first(function(*sets[i], softmax_scale=scale, causal=causal))


def _fa3_cache(torch: Any, workload: Workload, sets: Sequence[Any]) -> Call:
    function = importlib.import_module("flash_attn_interface").flash_attn_with_kvcache
    causal, scale = workload.spec.causal, workload.spec.scale_value
    caches = caches_of(torch, workload, sets)
    # It wants Q in the cache's element type; the scales, which are all 1, it takes as given.
    queries = [one.q if workload.spec.kv_dtype is None else one.q.to(one.k.dtype) for one in caches]

    def call(i: int) -> Any:
        one = caches[i]
        given = {"cache_seqlens": one.lengths, "page_table": one.table}
        return _first(
            function(queries[i], one.k, one.v, softmax_scale=scale, causal=causal, **given)
        )

    return call


def _fa4(torch: Any, workload: Workload, sets: Sequence[Any]) -> Call:
    function = importlib.import_module("flash_attn.cute").flash_attn_func
    causal, scale = workload.spec.causal, workload.spec.scale_value
    return lambda i: _first(function(*sets[i], softmax_scale=scale, causal=causal))


def _heads_first(sets: Sequence[Any]) -> list[tuple[Any, Any, Any]]:
    return [tuple(t.transpose(1, 2).contiguous() for t in inputs) for inputs in sets]


def _sdpa(backend: str) -> Callable[[Any, Workload, Sequence[Any]], Call]:
    def prepare(torch: Any, workload: Workload, sets: Sequence[Any]) -> Call:
        attention = importlib.import_module("torch.nn.attention")
        chosen = getattr(attention.SDPBackend, backend)
        function = torch.nn.functional.scaled_dot_product_attention
        copies = _heads_first(sets)
        grouped = {"enable_gqa": True} if workload.heads != workload.heads_kv else {}
        causal, scale = workload.spec.causal, workload.spec.scale_value

        def call(i: int) -> Any:
            with attention.sdpa_kernel(chosen):
                o = function(*copies[i], is_causal=causal, scale=scale, **grouped)
            return o.transpose(1, 2)

        return call

    return prepare


def _flex(torch: Any, workload: Workload, sets: Sequence[Any]) -> Call:
    module = importlib.import_module("torch.nn.attention.flex_attention")
    q_rows, k_rows = workload.seqlen_q, workload.seqlen_k
    offset = 0 if _top_left(workload) else k_rows - q_rows
    mask = None
    if workload.spec.causal:
        mask = module.create_block_mask(
            lambda b, h, m, n: m + offset >= n, None, None, q_rows, k_rows, device="cuda"
        )
    # NOTE: the compiler counts shapes and gives up after eight, unless it forgets.
    importlib.import_module("torch._dynamo").reset()
    function = torch.compile(module.flex_attention, dynamic=False)
    copies = _heads_first(sets)
    grouped = workload.heads != workload.heads_kv
    scale = workload.spec.scale_value

    def call(i: int) -> Any:
        o = function(*copies[i], block_mask=mask, scale=scale, enable_gqa=grouped)
        return o.transpose(1, 2)

    return call


PEERS: tuple[Peer, ...] = (
    Peer(
        name="fa3",
        title="FlashAttention-3",
        module="flash_attn_interface",
        install="pip install tokenspeed-fa3, or build hopper/ of flash-attention",
        refuse=_flash_refuses,
        prepare=_fa3,
        reads_caches=True,
    ),
    Peer(
        name="fa4",
        title="FlashAttention-4 (CuTe DSL)",
        module="flash_attn.cute",
        install="pip install --pre flash-attn-4 (with nvidia-cutlass-dsl and quack-kernels)",
        refuse=_flash_refuses,
        prepare=_fa4,
    ),
    Peer(
        name="cudnn",
        title="cuDNN through PyTorch",
        module="torch.nn.attention",
        install="pip install torch",
        refuse=_sdpa_refuses,
        prepare=_sdpa("CUDNN_ATTENTION"),
    ),
    Peer(
        name="fa2",
        title="FlashAttention-2 through PyTorch",
        module="torch.nn.attention",
        install="pip install torch",
        refuse=_sdpa_refuses,
        prepare=_sdpa("FLASH_ATTENTION"),
    ),
    Peer(
        name="flex",
        title="FlexAttention (Triton)",
        module="triton",
        install="pip install torch triton, and a C compiler",
        refuse=lambda workload: None,
        prepare=_flex,
    ),
)
