"""The functions that users call: targets under any name, devices, what a kernel tells of itself."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from fmhagen import api
from fmhagen import kernel as kernel_module
from fmhagen.errors import (
    FmhagenError,
    InvalidSpecError,
    RuntimeUnavailableError,
    ScheduleError,
    TensorError,
    UnknownTargetError,
    UnsupportedSpecError,
)
from fmhagen.runtime.emulator import Checks
from fmhagen.runtime.emulator_backend import EmulatorOptions
from fmhagen.runtime.tensors import Memory
from fmhagen.select import candidates, default_schedule
from fmhagen.spec import AttentionSpec
from fmhagen.targets import TARGETS, find_target

SPEC = AttentionSpec(dtype="fp16", head_dim=64)
REPOSITORY = Path(__file__).parent.parent


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)
def test_every_alias_of_a_target_gives_the_same_source(target: object) -> None:
    whole = api.emit(SPEC, target=target.name)
    for alias in target.aliases:
        assert api.emit(SPEC, target=alias) == whole
    assert whole.target == target.name


def test_full_names_of_devices_select_their_target() -> None:
    assert api.emit(SPEC, target="gfx942:sramecc+:xnack-").target == "gfx942"
    assert api.lower(SPEC, target="9.0a+PTX").target.name == "sm90"
    with pytest.raises(UnknownTargetError, match="sm_80"):
        api.emit(SPEC, target="sm_80")


def test_no_schedule_means_the_default() -> None:
    for target in TARGETS:
        schedule = default_schedule(SPEC, target)
        assert api.lower(SPEC, target=target.name) == api.lower(SPEC, schedule, target=target.name)
        choice = api.choose_schedule(SPEC, target=target.name)
        assert choice.schedule == schedule
        assert choice.reasons


def test_a_given_schedule_is_used() -> None:
    target = TARGETS[0]
    other = candidates(SPEC, target)[-1]
    assert api.lower(SPEC, other).schedule == other
    kernel = api.compile_kernel(SPEC, schedule=other)
    assert kernel.plan.schedule == other
    with pytest.raises(ScheduleError, match="main_loop"):
        api.emit(SPEC, other, target=TARGETS[1].name)


def test_what_is_not_supported_is_refused_before_any_tensor() -> None:
    with pytest.raises(UnsupportedSpecError, match="head_dim=72"):
        api.compile_kernel(AttentionSpec(head_dim=72))
    with pytest.raises(InvalidSpecError, match=r"emulator=\{'seed': 1\}: must be EmulatorOptions"):
        api.compile_kernel(SPEC, device="emulator", emulator={"seed": 1})  # type: ignore[arg-type]
    with pytest.raises(InvalidSpecError, match=r"device='gpu': must be one of auto, cuda"):
        api.compile_kernel(SPEC, device="gpu")
    with pytest.raises(InvalidSpecError, match=r"target='gfx942': cuda devices run kernels for"):
        api.compile_kernel(SPEC, device="cuda", target="gfx942")


def test_a_kernel_tells_what_it_is() -> None:
    kernel = api.compile_kernel(SPEC, device="emulator", target="mi300x")
    assert kernel.target == find_target("gfx942")
    assert kernel.source == api.emit(SPEC, target="gfx942")
    assert kernel.plan == api.lower(SPEC, target="gfx942")
    assert kernel.binary.kind == "shared_library"
    assert kernel.resources is kernel.binary.resources
    assert repr(kernel) == (
        "Kernel(AttentionSpec(dtype='fp16', head_dim=64), device='emulator', target='gfx942',"
        f" symbol={kernel.plan.symbol!r})"
    )


def test_auto_compiles_lazily_for_the_memory_of_the_call(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = []
    compile_source = kernel_module.compile_source

    def count(source: object, **options: object) -> object:
        compiled.append((source.target, options.get("for_emulator", False)))
        return compile_source(source, **options)

    monkeypatch.setattr(kernel_module, "compile_source", count)
    kernel = api.compile_kernel(SPEC)
    assert compiled == []
    q = np.zeros((1, 3, 1, 64), np.float16)
    kernel(q, q, q)
    kernel(q, q, q)
    assert compiled == [("sm90", True)]


def test_auto_with_a_target_emulates_that_target() -> None:
    kernel = api.compile_kernel(SPEC, target="gfx942")
    q = np.zeros((1, 3, 1, 64), np.float16)
    assert kernel(q, q, q).shape == q.shape
    assert kernel.target.name == "gfx942"


def test_a_kernel_without_a_gpu_still_has_resources() -> None:
    pytest.importorskip("cuda.bindings.nvrtc", reason="NVRTC's bindings are not installed")
    resources = api.compile_kernel(SPEC, target="sm90").resources
    assert resources.clean
    assert resources.registers > 0


def test_an_explicit_gpu_that_is_not_here_is_an_error() -> None:
    from fmhagen.runtime.devices import gpu_backend

    for device, memory, target in (("cuda", Memory.CUDA, "sm90"), ("hip", Memory.HIP, "gfx942")):
        try:
            gpu_backend(memory).require(target)
        except RuntimeUnavailableError:
            with pytest.raises(RuntimeUnavailableError):
                api.compile_kernel(SPEC, device=device)


def test_features_behind_a_targets_name_reach_the_compiler(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen = []
    monkeypatch.setattr(
        kernel_module, "compile_source", lambda source, **options: seen.append(options)
    )
    for name in ("mi300x:sramecc+:xnack-", "gfx942"):
        _ = api.compile_kernel(SPEC, target=name).binary
    assert [options["architecture"] for options in seen] == ["gfx942:sramecc+:xnack-", None]


def test_emulator_options_reach_the_emulator(monkeypatch: pytest.MonkeyPatch) -> None:
    from fmhagen.runtime.emulator import Emulator

    seen = []
    run = Emulator.run

    def note(self: Emulator, **options: object) -> object:
        seen.append((options["seed"], options["checks"], options["grid"]))
        return run(self, **options)

    monkeypatch.setattr(Emulator, "run", note)
    spec = AttentionSpec(dtype="fp16", head_dim=64, causal=True)
    options = EmulatorOptions(seed=9, checks=Checks.RACES, compute_units=2)
    q = np.zeros((1, 3, 7, 64), np.float16)
    api.compile_kernel(spec, device="emulator", emulator=options)(q, q, q)
    persistent = api.lower(spec).grid.per_compute_unit
    assert seen == [(9, Checks.RACES, 2 if persistent else 7)]


def test_errors_of_a_call_are_data_too() -> None:
    q = np.zeros((1, 3, 1, 64), np.float16)
    kernel = api.compile_kernel(SPEC, device="emulator")
    with pytest.raises(TensorError) as caught:
        kernel(q, q[..., :32], q)
    found = caught.value.to_dict()
    assert (found["error"], found["field"]) == ("TensorError", "k")
    for scale in (-1.0, float("nan"), "big"):
        with pytest.raises(FmhagenError, match="scale"):
            kernel(q, q, q, scale=scale)


def test_the_api_touches_no_driver_and_no_framework() -> None:
    code = (
        "import sys\nfrom fmhagen import api\nfrom fmhagen.spec import AttentionSpec\n"
        "spec = AttentionSpec(causal=True)\napi.emit(spec)\nkernel = api.compile_kernel(spec)\n"
        "repr(kernel), kernel.source\nprint('\\n'.join(sys.modules))"
    )
    done = subprocess.run(
        (sys.executable, "-c", code), cwd=REPOSITORY, capture_output=True, text=True, check=True
    )
    roots = {name.partition(".")[0] for name in done.stdout.split()}
    assert not roots & {"cuda", "hip", "rocm", "torch", "cupy", "numpy", "jax"}
