"""Bank conflicts of a kernel, counted on the emulator from the addresses of a real run."""

from __future__ import annotations

from fmhagen.checking.verification import Case, random_tensors
from fmhagen.compile import compile_source
from fmhagen.instance import Instance
from fmhagen.runtime.calls import Calls
from fmhagen.runtime.emulator_backend import EmulatorBackend, EmulatorOptions, LoadedEmulator
from fmhagen.runtime.emulator_records import BankUse
from fmhagen.runtime.launcher import Launcher


def bank_conflicts(instance: Instance, case: Case) -> tuple[BankUse, ...]:
    """Run an instance on the emulator and return how its accesses went through the banks.

    Raises:
        CompileError: there is no host compiler, or it refused the source.
        EmulatorError: the emulator found a fault.
    """
    source = instance.source()
    launcher = Launcher(
        instance.plan(),
        EmulatorBackend(EmulatorOptions()),
        lambda: compile_source(source, for_emulator=True),
    )
    Calls(instance.spec, lambda _: launcher)(*random_tensors(instance.spec, case), return_lse=True)
    loaded = launcher.load(0)
    assert isinstance(loaded, LoadedEmulator)
    return loaded.report.banks if loaded.report is not None else ()
