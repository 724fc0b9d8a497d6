"""Kernel: one attention kernel as a callable on tensors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal, Unpack

from fmhagen.compile.binary import Binary, Resources
from fmhagen.compile.cache import Cache
from fmhagen.compile.driver import compile_source
from fmhagen.emission import emit_source
from fmhagen.errors import InvalidSpecError, TensorError
from fmhagen.formula import is_mapped
from fmhagen.lowering import lower
from fmhagen.mapping.calls import Mapper
from fmhagen.plan.attention import Plan
from fmhagen.runtime.arguments import Extras
from fmhagen.runtime.base import Backend
from fmhagen.runtime.block_map import BlockMap
from fmhagen.runtime.cache_calls import CacheCalls
from fmhagen.runtime.calls import Calls
from fmhagen.runtime.devices import (
    MEMORY_OF_DEVICE,
    MEMORY_OF_TARGET,
    TARGET_OF_MEMORY,
    find_device,
    gpu_backend,
)
from fmhagen.runtime.launcher import Launcher
from fmhagen.runtime.tensors import Memory, TensorView
from fmhagen.schedule import Schedule
from fmhagen.select import default_schedule
from fmhagen.source import Source
from fmhagen.spec import AttentionSpec
from fmhagen.targets import TARGETS, Target, find_target

if TYPE_CHECKING:
    from fmhagen.runtime.emulator_backend import EmulatorOptions

DEFAULT_TARGET = TARGETS[0].name
CacheChoice = Cache | Literal["default"] | None


class Kernel:
    """One attention kernel: a callable on tensors; made by `compile_kernel`."""

    def __init__(
        self,
        spec: AttentionSpec,
        *,
        device: str = "auto",
        target: str | None = None,
        schedule: Schedule | None = None,
        cache: CacheChoice = "default",
        emulator: EmulatorOptions | None = None,
        seqlen_hint: int | None = None,
        query_hint: int | None = None,
        group_hint: int | None = None,
        heads_hint: int | None = None,
    ) -> None:
        """Decide all that needs no tensor; see `compile_kernel`."""
        self.spec = spec
        self.device = find_device(device)
        self._target = None if target is None else find_target(target)
        # The features behind a name, as in "mi300x:sramecc+:xnack-", are for the compiler.
        _, _, features = (target or "").partition(":")
        self._architecture = (
            f"{self._target.compiler_arch}:{features}" if self._target and features else None
        )
        self._schedule = schedule
        hints = {"seqlen_hint": seqlen_hint, "query_hint": query_hint}
        self._hints = {**hints, "group_hint": group_hint, "heads_hint": heads_hint}
        self._cache = cache
        if emulator is not None and not hasattr(emulator, "optimisation"):
            limit = "must be EmulatorOptions, of fmhagen.runtime.emulator_backend, or None"
            raise InvalidSpecError("emulator", emulator, limit)
        self._options = emulator
        self._launchers: dict[Memory, Launcher] = {}
        kind = CacheCalls if spec.kv_cache else Calls
        self._calls = kind(spec, self._pick)
        self._run = self._calls.__call__  # a bound method is called sooner than an instance
        self._mapper = Mapper(spec, self._pick, self._compile) if is_mapped(spec) else None
        memory = MEMORY_OF_DEVICE.get(self.device)
        if memory is not None:
            self._check_target(memory)
            launcher = self._launcher(memory)
            launcher.backend.require(launcher.plan.target.name)
            _ = launcher.binary
        else:
            _ = self._lowered(self.target.name)  # refuse now what it can refuse

    def __call__(
        self,
        q: Any,
        k: Any,
        v: Any,
        *,
        scale: float | None = None,
        out: Any = None,
        return_lse: bool = False,
        **extras: Unpack[Extras],
    ) -> Any:
        """Compute O = softmax(scale * Q K^T + mask) V on the current stream of q's device.

        Args:
            q: query in the spec's layout; NumPy, PyTorch, CuPy, or any object with __dlpack__. With
                spec.varlen the sequences lie one behind another, (total, H, d) for bshd.
            k: key; its heads divide q's. With spec.kv_cache the cache, (B, S, Hk, d) or with a
                page_size (pages, page_size, Hk, d), in the spec's cache_layout.
            v: value, likewise.
            scale: softmax scale of this call; None means the spec's.
            out: where O is written; None makes a new tensor, whose axes lie in memory as q's do.
            return_lse: also give LSE in fp32, natural logarithm: (B, H, Sq), packed (H, total).
            extras: what the spec asks for besides, each on the device of q:
                params: what the mask and score functions read at run time, by name: tensors, which
                    may have any strides and repeat along axes of one element, and numbers. What a
                    function captured need not be given.
                alibi_slopes: with spec.alibi, slopes of the heads, (H,) or (B, H).
                cache_seqlens: with spec.kv_cache, the keys that each sequence has, the new ones
                    included, (B,); None means as many as there is room for.
                block_table: with spec.page_size, the pages of each sequence, (B, max_pages).
                k_scale, v_scale: with a kv_scale, fp32 factors of K and V: (1,), (Hk,) or (B, Hk),
                    or the shape of the cache without its depth.
                num_splits: with spec.kv_cache, parts that every sequence is cut into; None lets
                    the kernel choose by the lengths.
                sinks: with spec.sink, one logit a query head, (H,), fp32 or 16 bits.
                max_logit: with spec.max_logit, (H,) fp32 numbers that are raised to the largest
                    score of each query head, over batch and rows; begin with -inf. None keeps no
                    scores; several calls may share one tensor.
                cu_seqlens_q, cu_seqlens_k: with spec.varlen, where the sequences begin, and the
                    end, (B + 1,), int32 or int64; over a cache cu_seqlens_q alone.
                seqused_q, seqused_k: rows of each sequence that count, (B,); the rows of O behind
                    them are not written.
                max_seqlen_q, max_seqlen_k: ints, the most rows of a sequence; None means as many
                    as all have together. Rows beyond a max_seqlen_q that is too small are not
                    computed.
                block_map: what `prepare` gave, where the mask reads tensors by position, or a
                    BlockMask of PyTorch; None makes a map for this call.
                validate: read the offsets and refuse what is wrong with them; None does so for
                    host memory alone, since on a GPU it waits for the device.

        Returns:
            O, or (O, LSE).

        Raises:
            TensorError: a tensor does not fit; names it, its value and the limit.
            CaptureError: the first call on a device falls into a graph capture.
            LaunchError: the driver refused.
            EmulatorError: the emulator found a fault in the kernel.
        """
        if self._mapper is not None and not isinstance(extras.get("block_map"), BlockMap):
            extras["block_map"] = self._map(q, k, extras.get("params"), extras.get("block_map"))
        return self._run(q, k, v, scale, out, return_lse, extras)

    def prepare(
        self, q: Any, k: Any, *, params: Mapping[str, Any] | None = None, block_mask: Any = None
    ) -> BlockMap:
        """Return the block map of a mask that reads tensors by position, for many calls.

        A call without one makes it, on the same stream, by one launch that asks the mask about
        every query and key once; the layers of a model can share one.

        Args:
            q, k: tensors of the shapes of the calls; their elements are not read.
            params: what the mask reads, as in a call.
            block_mask: a BlockMask of PyTorch for the same mask; the map is what it says, and the
                mask is asked in partly visible tiles alone. Its blocks must be multiples of the
                kernel's tiles (plan.map_rows, plan.map_keys).

        Raises:
            InvalidSpecError: the mask needs no map: bounds of what is visible are known.
            TensorError, CaptureError: as a call.
        """
        if self._mapper is None:
            limit = "has no block map: its tiles are known without, or its sequences are packed"
            raise InvalidSpecError("spec", self.plan.symbol, limit, "leave block_map out")
        return self._map(q, k, params, block_mask)

    def _map(self, q: Any, k: Any, params: Mapping[str, Any] | None, block_mask: Any) -> BlockMap:
        assert self._mapper is not None
        if block_mask is None:
            return self._mapper(q, k, params)
        return self._mapper.converted(q, k, block_mask)

    def load(self, device: int = 0) -> None:
        """Compile for and load on a GPU now, as before a graph capture; needs no tensors."""
        memory = MEMORY_OF_DEVICE.get(self.device) or MEMORY_OF_TARGET[self.target.name]
        launcher = self._launcher(memory)
        launcher.load(device)
        if self._mapper is not None:
            self._mapper.load(launcher, device)

    @property
    def target(self) -> Target:
        """The chip: the one asked for, else that of the device or of the first call."""
        if self._target is not None:
            return self._target
        memory = MEMORY_OF_DEVICE.get(self.device) or next(iter(self._launchers), Memory.HOST)
        return find_target(TARGET_OF_MEMORY.get(memory, DEFAULT_TARGET))

    @property
    def plan(self) -> Plan:
        """What was decided for the target."""
        return self._default.plan

    @property
    def source(self) -> Source:
        """The emitted file for the target."""
        return emit_source(self.plan)

    @property
    def binary(self) -> Binary:
        """The compiled kernel; on the emulator's device the host library."""
        return self._default.binary

    @property
    def resources(self) -> Resources:
        """Registers, spills and shared memory, read back from the binary."""
        return self.binary.resources

    def __repr__(self) -> str:
        """Return what the kernel is and where it runs."""
        return (
            f"Kernel({self.spec!r}, device={str(self.device)!r}, target={self.target.name!r},"
            f" symbol={self.plan.symbol!r})"
        )

    @property
    def _default(self) -> Launcher:
        memory = MEMORY_OF_DEVICE.get(self.device) or next(iter(self._launchers), None)
        return self._launcher(memory or MEMORY_OF_TARGET[self.target.name])

    def _pick(self, q: TensorView) -> Launcher:
        wanted = MEMORY_OF_DEVICE.get(self.device)
        if wanted is not None and q.memory != wanted:
            limit = f"this kernel was compiled for {self.device}, which reads {wanted} memory"
            raise TensorError("q", q.place, limit, "move the tensors, or use device='auto'")
        if q.memory not in self._launchers:
            try:
                self._check_target(q.memory)
            except InvalidSpecError as error:
                raise TensorError("q", q.place, error.limit, error.suggestion) from None
        return self._launcher(q.memory)

    def _check_target(self, memory: Memory) -> None:
        runs = TARGET_OF_MEMORY.get(memory)
        if self._target is not None and runs not in (None, self._target.name):
            limit = f"{memory} devices run kernels for {runs}"
            hint = f"use target={runs!r}, or device='emulator'"
            raise InvalidSpecError("target", self._target.name, limit, hint)

    def _lowered(self, target: str) -> Plan:
        chip = find_target(target)
        schedule = self._schedule
        if schedule is None:
            schedule = default_schedule(self.spec, chip, **self._hints)
        return lower(self.spec, schedule, chip)

    def _launcher(self, memory: Memory) -> Launcher:
        found = self._launchers.get(memory)
        if found is None:
            name = TARGET_OF_MEMORY.get(memory, DEFAULT_TARGET)
            if self._target is not None:
                name = self._target.name
            plan = self._lowered(name)
            launcher = Launcher(
                plan, self._backend(memory), lambda: self._compile(emit_source(plan), memory)
            )
            found = self._launchers.setdefault(memory, launcher)
        return found

    def _backend(self, memory: Memory) -> Backend:
        if memory != Memory.HOST:
            return gpu_backend(memory)
        from fmhagen.runtime.emulator_backend import EmulatorBackend, EmulatorOptions

        return EmulatorBackend(self._options or EmulatorOptions())

    def _compile(self, source: Source, memory: Memory) -> Binary:
        if memory != Memory.HOST:
            # NOTE: a user's function may take more registers than there are, and is to run all the
            # same; the schedules are those with which the functions of the library do not.
            has_function = self.spec.mask_mod is not None or self.spec.score_mod is not None
            return compile_source(
                source,
                cache=self._cache,
                architecture=self._architecture,
                allow_spills=has_function,
            )
        optimisation = "O0" if self._options is None else self._options.optimisation
        return compile_source(
            source, cache=self._cache, for_emulator=True, host_optimisation=optimisation
        )
