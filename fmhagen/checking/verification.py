"""Verification: a kernel against float64 on random tensors, on a GPU or on the emulator."""

from __future__ import annotations

import importlib.util
import time
from dataclasses import asdict, dataclass
from typing import Any

from fmhagen.errors import InvalidSpecError, RuntimeUnavailableError
from fmhagen.instance import Instance
from fmhagen.oracle.comparison import Comparison, Tolerance, compare, tolerance_of
from fmhagen.spec import AttentionSpec

EMULATOR = "emulator"
DEVICES = ("auto", "cuda", "hip", EMULATOR)


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """The sizes of one call; awkward by default, so that no tile is whole.

    Attributes:
        batch: sequences.
        heads: query heads.
        heads_kv: key and value heads; divides `heads`.
        seqlen_q: query rows of a sequence.
        seqlen_k: keys of a sequence.
        seed: of the random numbers, and of the emulator's interleaving.

    Raises:
        InvalidSpecError: a size has no meaning.
    """

    batch: int = 2
    heads: int = 4
    heads_kv: int = 2
    seqlen_q: int = 197
    seqlen_k: int = 333
    seed: int = 0

    def __post_init__(self) -> None:
        """Refuse sizes without a meaning."""
        for name in ("batch", "heads", "heads_kv", "seqlen_q", "seqlen_k"):
            if getattr(self, name) < 0:
                raise InvalidSpecError(name, getattr(self, name), "must be at least 0")
        if self.heads and (not self.heads_kv or self.heads % self.heads_kv):
            limit = f"must divide heads={self.heads}"
            raise InvalidSpecError("heads_kv", self.heads_kv, limit, "use heads_kv=1 for MQA")


@dataclass(frozen=True, slots=True, kw_only=True)
class Verification:
    """What one comparison gave.

    Attributes:
        symbol: the kernel.
        target: the chip that it is for.
        device: where it ran: "emulator", or the memory and name of a GPU.
        case: the sizes and the seed.
        comparison: how far O and LSE are from float64.
        tolerance: what still counts as right.
        seconds: of the call, compilation excluded.
    """

    symbol: str
    target: str
    device: str
    case: Case
    comparison: Comparison
    tolerance: Tolerance
    seconds: float

    @property
    def passed(self) -> bool:
        """Whether the result counts as right."""
        return self.comparison.within(self.tolerance)

    def to_dict(self) -> dict[str, Any]:
        """Return the verification as JSON-ready data."""
        return {
            "symbol": self.symbol,
            "target": self.target,
            "device": self.device,
            "passed": self.passed,
            "case": asdict(self.case),
            "comparison": asdict(self.comparison),
            "tolerance": asdict(self.tolerance),
            "seconds": self.seconds,
        }


def verify(instance: Instance, case: Case, *, device: str = "auto") -> Verification:
    """Run an instance on random tensors and compare O and LSE with float64.

    Args:
        instance: the kernel.
        case: the sizes.
        device: "cuda", "hip", "emulator", or "auto": a GPU of the instance's target if there is
            one, else the emulator.

    Raises:
        RuntimeUnavailableError: the device is not here.
        CompileError: the kernel does not compile.
        EmulatorError: the emulator found a fault.
    """
    from fmhagen.api import compile_kernel
    from fmhagen.checking.draws import draw
    from fmhagen.oracle.attention import reference
    from fmhagen.runtime.emulator_backend import EmulatorOptions

    spec = instance.spec
    place, name = find_device(instance, device)
    drawn = draw(spec, case)
    kernel = compile_kernel(
        spec,
        device=place,
        target=instance.target.name,
        schedule=instance.schedule,
        emulator=EmulatorOptions(seed=case.seed),
    )
    placed = tuple(_to_device(tensor, place) for tensor in (drawn.q, drawn.k, drawn.v))
    extras = {**_to_device(drawn.extras, place), **drawn.hints}
    if place != EMULATOR:  # the first call loads the kernel
        kernel(*placed, return_lse=True, **extras)
        _synchronise()
    started = time.perf_counter()
    o, lse = kernel(*placed, return_lse=True, **extras)
    if place != EMULATOR:
        _synchronise()
    seconds = time.perf_counter() - started
    o_ref, lse_ref = reference(spec, drawn.q, drawn.k, drawn.v, **drawn.extras)
    return Verification(
        symbol=instance.plan().symbol,
        target=instance.target.name,
        device=name,
        case=case,
        comparison=compare(o, lse, o_ref, lse_ref, layout=str(spec.layout)),
        tolerance=tolerance_of(spec.dtype),
        seconds=seconds,
    )


def random_tensors(spec: AttentionSpec, case: Case) -> tuple[Any, Any, Any]:
    """Return Q, K and V of `draws.draw`."""
    from fmhagen.checking.draws import draw

    drawn = draw(spec, case)
    return drawn.q, drawn.k, drawn.v


def find_device(instance: Instance, device: str) -> tuple[str, str]:
    """Return where an instance runs ("cuda", "hip" or "emulator") and that place's full name.

    Raises:
        RuntimeUnavailableError: the device is not here or cannot run the instance's target.
    """
    from fmhagen.runtime.devices import MEMORY_OF_TARGET, list_devices

    if device not in DEVICES:
        raise InvalidSpecError("device", device, f"must be one of {', '.join(DEVICES)}")
    if device == EMULATOR:
        return EMULATOR, EMULATOR
    memory = str(MEMORY_OF_TARGET[instance.target.name])
    if device not in ("auto", memory):
        raise RuntimeUnavailableError(
            f"device={device!r} does not run {instance.target.name}; use {memory} or {EMULATOR}"
        )
    reasons = []
    for report in list_devices():
        if str(report.memory) == memory:
            if report.missing is None and importlib.util.find_spec("torch") is None:
                reasons.append(f"{report.name} is here, but its tensors need torch")
            elif report.missing is None:
                return memory, f"{memory} ({report.name})"
            else:
                reasons.append(report.missing)
    if device == "auto":
        # A GPU that is there but was not used is named, with the reason in short.
        short = "; ".join(reason.partition(": ")[0] for reason in reasons)
        return EMULATOR, f"{EMULATOR} ({short})" if short else EMULATOR
    raise RuntimeUnavailableError("; ".join(reasons) or f"there is no {memory} device")


def target_of_device(device: str) -> str:
    """Return the target that a GPU's name stands for, or "all" where any target may be meant."""
    from fmhagen.runtime.devices import MEMORY_OF_TARGET

    return {str(memory): target for target, memory in MEMORY_OF_TARGET.items()}.get(device, "all")


def _to_device(value: Any, place: str) -> Any:
    """Return an array, or every array in a dict, in the memory of a place."""
    if isinstance(value, dict):
        return {name: _to_device(item, place) for name, item in value.items()}
    if place == EMULATOR or not hasattr(value, "dtype"):
        return value
    import torch

    if value.dtype.name == "bfloat16":  # NumPy has none of its own, so torch takes the bits
        return torch.from_numpy(value.view("int16")).view(torch.bfloat16).to("cuda")
    return torch.from_numpy(value).to("cuda")  # ROCm's name too


def _synchronise() -> None:
    import torch

    torch.cuda.synchronize()
