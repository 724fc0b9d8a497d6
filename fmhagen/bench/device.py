"""Device: PyTorch on a GPU as the ground that all contestants stand on."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, NamedTuple

from fmhagen.bench.caches import stored
from fmhagen.bench.monitor import Monitor
from fmhagen.bench.timing import Sample
from fmhagen.bench.workloads import Workload
from fmhagen.errors import RuntimeUnavailableError

WARM_UP_CALLS = 3
REFERENCE_ELEMENTS = 2**26  # scores of one chunk of the float64 reference


class Inputs(NamedTuple):
    """Q, K and V of one call, in bshd."""

    q: Any
    k: Any
    v: Any


class Replay(NamedTuple):
    """Calls that are ready to be issued together.

    Attributes:
        run: issues them all.
        calls: how many.
        output: O of the last one, bshd.
        method: "graph" or "calls".
        reason: why there is no graph.
    """

    run: Callable[[], None]
    calls: int
    output: Callable[[], Any]
    method: str
    reason: str = ""


class TorchDevice:
    """One CUDA device under PyTorch."""

    place = "cuda"

    def __init__(self, index: int = 0) -> None:
        """Open the device.

        Raises:
            RuntimeUnavailableError: there is no PyTorch, or it shows no such device.
        """
        try:
            import torch
        except ImportError as error:
            raise RuntimeUnavailableError(
                "timing needs PyTorch with CUDA; install: pip install torch"
            ) from error
        if not torch.cuda.is_available():
            raise RuntimeUnavailableError("PyTorch shows no CUDA device: nothing can be timed")
        self.torch = torch
        self.index = index
        torch.cuda.set_device(index)
        torch.set_grad_enabled(False)
        self.monitor = Monitor(index, bus_id=_bus_id(torch, index))

    def facts(self) -> dict[str, Any]:
        """Return what a report says of the device."""
        torch = self.torch
        properties = torch.cuda.get_device_properties(self.index)
        return {
            "name": torch.cuda.get_device_name(self.index),
            "compute_units": properties.multi_processor_count,
            "memory_bytes": properties.total_memory,
            "watts_limit": self.monitor.watts_limit(),
            "torch": torch.__version__,
            "cuda": torch.version.cuda,
            "cudnn": torch.backends.cudnn.version(),
        }

    def inputs(self, workload: Workload, *, sets: int, seed: int) -> list[Inputs]:
        """Return sets of N(0, 1) tensors."""
        torch, spec = self.torch, workload.spec
        dtype = {"bf16": torch.bfloat16, "fp16": torch.float16}[spec.dtype]
        generator = torch.Generator(device=self.place).manual_seed(seed)

        def normal(length: int, heads: int, depth: int) -> Any:
            shape = workload.batch, length, heads, depth
            return torch.randn(shape, device=self.place, dtype=dtype, generator=generator)

        def key(depth: int) -> Any:
            # What an 8-bit cache holds exactly, so that float64 sees the same numbers.
            drawn = normal(workload.seqlen_k, workload.heads_kv, depth)
            return stored(torch, spec, drawn).to(dtype)

        return [
            Inputs(normal(workload.seqlen_q, workload.heads, spec.d), key(spec.d), key(spec.dv))
            for _ in range(sets)
        ]

    def new_output(self, workload: Workload, like: Any) -> Any:
        """Return an O to write to, bshd."""
        shape = workload.batch, workload.seqlen_q, workload.heads, workload.spec.dv
        return self.torch.empty(shape, device=like.device, dtype=like.dtype)

    def capture(self, call: Callable[[int], Any], calls: int, sets: int) -> Replay:
        """Warm up, then capture calls over rotating sets in a graph; plain calls where it fails.

        The last call's output stays; see `timing.calls_per_sample` for which one that is.
        """
        torch = self.torch
        kept: list[Any] = [None]

        def all_calls() -> None:
            for number in range(calls):
                kept[0] = None
                kept[0] = call(number % sets)

        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for number in range(WARM_UP_CALLS):
                call(number % sets)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph):
                all_calls()
        except RuntimeError as error:
            torch.cuda.synchronize()
            reason = " ".join(str(error).split())[:200]
            return Replay(all_calls, calls, lambda: kept[0], "calls", reason)
        output = kept[0]
        return Replay(graph.replay, calls, lambda: output, "graph")

    def run_poisoned(self, replay: Replay) -> Any:
        """Return the output of a replay that began with NaN in its place."""
        output = replay.output()
        if output is not None:
            output.fill_(float("nan"))
        replay.run()
        self.torch.cuda.synchronize()
        return replay.output()

    def sample(self, replay: Replay) -> Sample:
        """Time one replay on the device, right after an untimed one."""
        torch = self.torch
        start = torch.cuda.Event(enable_timing=True)
        end = torch.cuda.Event(enable_timing=True)
        replay.run()
        start.record()
        replay.run()
        end.record()
        start.synchronize()
        clock, watts = self.monitor.clock_mhz(), self.monitor.watts()
        end.synchronize()
        milliseconds = start.elapsed_time(end) / replay.calls
        return Sample(milliseconds=milliseconds, clock_mhz=clock, watts=watts)

    def sample_host(self, call: Callable[[int], Any], calls: int) -> Sample:
        """Time the host's part of calls that are issued to an empty queue."""
        self.torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(calls):
            call(0)
        seconds = time.perf_counter() - start
        self.torch.cuda.synchronize()
        return Sample(milliseconds=seconds * 1000 / calls)

    def reference(self, workload: Workload, inputs: Inputs) -> Any:
        """Return O in float64, bshd."""
        torch = self.torch
        q, k, v = (tensor.transpose(1, 2) for tensor in inputs)
        batch, heads, seqlen_q, _ = q.shape
        seqlen_k, group = k.shape[2], heads // k.shape[1]
        o = torch.empty((batch, heads, seqlen_q, v.shape[3]), device=q.device, dtype=torch.float64)
        rows = max(1, min(seqlen_q, REFERENCE_ELEMENTS // seqlen_k))
        for b in range(batch):
            for h in range(heads):
                key, value = k[b, h // group].double(), v[b, h // group].double()
                for first in range(0, seqlen_q, rows):
                    query = q[b, h, first : first + rows].double()
                    scores = (query @ key.T) * workload.spec.scale_value
                    self._hide(workload, scores, first)
                    weights = torch.softmax(scores, -1).nan_to_num_(0.0)
                    o[b, h, first : first + rows] = weights @ value
        return o.transpose(1, 2)

    def _hide(self, workload: Workload, scores: Any, first: int) -> None:
        if not workload.spec.causal:
            return
        torch = self.torch
        top_left = workload.spec.anchor == "top_left"
        offset = 0 if top_left else workload.seqlen_k - workload.seqlen_q
        m = torch.arange(first, first + scores.shape[0], device=scores.device)[:, None]
        n = torch.arange(scores.shape[1], device=scores.device)[None]
        scores.masked_fill_(n > m + offset, float("-inf"))

    def errors(self, output: Any, reference: Any) -> tuple[float, float]:
        """Return the RMS and the worst error relative to the reference's RMS and largest value."""
        difference = output.double() - reference
        rms = (difference.norm() / reference.norm()).item()
        worst = (difference.abs().max() / reference.abs().max()).item()
        return float(rms), float(worst)

    def copy(self, output: Any) -> Any:
        """Return a copy."""
        return output.clone()

    def same_bits(self, one: Any, other: Any) -> bool:
        """Return whether two tensors are bitwise the same."""
        integer = self.torch.int16
        return bool(self.torch.equal(one.view(integer), other.view(integer)))

    def is_alive(self) -> bool:
        """Return whether the device still answers; an illegal access ends its context."""
        try:
            self.torch.cuda.synchronize()
        except RuntimeError:
            return False
        return True

    def release(self) -> None:
        """Give cached memory back."""
        import gc

        gc.collect()
        self.torch.cuda.empty_cache()

    def matmul_tflops(self, size: int = 8192, seconds: float = 1.0) -> float:
        """Return what the vendor's matrix product reaches on N(0, 1) in bf16 under steady load."""
        torch = self.torch
        a, b = (torch.randn((size, size), device="cuda", dtype=torch.bfloat16) for _ in range(2))
        out = torch.empty_like(a)
        flops = 2.0 * size**3
        calls = max(3, int(seconds * 700e12 / flops))
        replay = self.capture(lambda _: torch.matmul(a, b, out=out), calls, 1)
        return flops / self.sample(replay).milliseconds / 1e9


def _bus_id(torch: Any, index: int) -> str | None:
    properties = torch.cuda.get_device_properties(index)
    try:
        domain, bus, slot = (
            properties.pci_domain_id,
            properties.pci_bus_id,
            properties.pci_device_id,
        )
        return f"{domain:08x}:{bus:02x}:{slot:02x}.0"
    except (AttributeError, TypeError, ValueError):
        return None
