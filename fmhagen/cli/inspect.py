"""`inspect`: what a compiled kernel is made of."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any

import typer

from fmhagen.checking.verification import Case
from fmhagen.cli.command import command
from fmhagen.cli.options import CompilerName, Json, check_compiler
from fmhagen.cli.output import note, table, write_json, write_table, write_text
from fmhagen.cli.request import Request
from fmhagen.compile import compile_source
from fmhagen.errors import FmhagenError
from fmhagen.inspection import Disassembly, count_classes, disassemble, occupancy
from fmhagen.inspection.conflicts import bank_conflicts
from fmhagen.inspection.main_loop import main_loop_report
from fmhagen.instance import Instance
from fmhagen.runtime.emulator_records import BankUse


def register(app: typer.Typer) -> None:
    """Add the command to an application."""
    command(app, "inspect", default_target="sm90")(inspect)


def inspect(
    request: Request,
    *,
    source: Annotated[bool, typer.Option("--source", help="Print the source alone.")] = False,
    machine_code: Annotated[
        bool, typer.Option("--sass", "--isa", help="Print the machine code alone.")
    ] = False,
    compiler: CompilerName = "auto",
    conflicts: Annotated[
        bool,
        typer.Option(
            "--conflicts/--no-conflicts", help="Run on the emulator to count bank conflicts."
        ),
    ] = True,
    json: Json = False,
) -> None:
    """Show a compiled kernel: resources, occupancy, instruction counts, bank conflicts.

    The machine code comes from nvdisasm (a wheel) or llvm-objdump; where there is no
    llvm-objdump, the compiler's own assembly is shown.

    \b
    Examples:
      fmhagen inspect --head-dim 128 --causal
      fmhagen inspect --target gfx942 --isa | less
      fmhagen inspect --sass --tile-n 64
      fmhagen inspect --target all --json
    """
    reports = []
    for instance in request.instances("sm90"):
        check_compiler(compiler, instance.target.name)
        kernel = instance.source()
        if source:
            write_text(kernel.text)
            continue
        if machine_code:
            binary = compile_source(kernel, compiler=compiler, allow_spills=True)
            write_text(disassemble(binary, kernel, instance.target).text)
            continue
        reports.append(_report(instance, compiler, conflicts=conflicts))
    if json and reports:
        write_json(reports)
    elif reports:
        for report in reports:
            _print(report)


def _report(instance: Instance, compiler: str, *, conflicts: bool) -> dict[str, Any]:
    plan, kernel, target = instance.plan(), instance.source(), instance.target
    binary = compile_source(kernel, compiler=compiler, allow_spills=True)
    report: dict[str, Any] = {
        "symbol": plan.symbol,
        "target": target.name,
        "source_lines": kernel.text.count("\n"),
        "digest": kernel.digest,
        "compiler": binary.compiler,
        "threads": plan.threads,
        "resources": {**binary.resources.to_dict(), "clean": binary.resources.clean},
        "occupancy": occupancy(target, binary.resources, threads=plan.threads).to_dict(),
        "instructions": None,
        "disassembler": None,
        "bank_conflicts": None,
        "main_loop": None,
        "missing": [],
    }
    listing: Disassembly | None = None
    try:
        listing = disassemble(binary, kernel, target)
        report["disassembler"] = listing.tool
        report["instructions"] = count_classes(listing.text, target)
    except FmhagenError as error:
        report["missing"].append(str(error))
    banks: tuple[BankUse, ...] = ()
    if conflicts:
        try:
            case = Case(batch=1, heads=1, heads_kv=1, seqlen_q=300, seqlen_k=300)
            banks = bank_conflicts(instance, case)
            report["bank_conflicts"] = [asdict(use) for use in banks]
        except FmhagenError as error:
            report["missing"].append(f"bank conflicts: {error}")
    if listing is not None:
        loop = main_loop_report(
            listing.text,
            target,
            binary.resources,
            threads=plan.threads,
            groups=plan.wave_groups,
            banks=banks,
        )
        report["main_loop"] = None if loop is None else loop.to_dict()
    return report


def _print(report: dict[str, Any]) -> None:
    write_text(f"{report['symbol']}, {report['source_lines']} lines, {report['compiler']}")
    write_text(f"occupancy: {report['occupancy']['text']}\n\n")
    _pairs("resource", "value", report["resources"])
    if report["instructions"] is not None:
        _pairs("instructions", "count", report["instructions"])
    if report["bank_conflicts"] is not None:
        shown = table(
            "shared memory", "accesses", "extra wavefronts", right=("accesses", "extra wavefronts")
        )
        for row in report["bank_conflicts"]:
            shown.add_row(row["name"], str(row["accesses"]), str(row["extra_wavefronts"]))
        write_table(shown)
        write_text("")
    if report["main_loop"] is not None:
        _main_loop(report["main_loop"])
    for sentence in report["missing"]:
        note(sentence)


def _main_loop(loop: dict[str, Any]) -> None:
    simulated = loop["simulated"]
    clk = f"{simulated['clk_per_turn']:.0f}"
    _pairs("main loop, one wave and turn", "instructions", loop["counts"])
    _pairs(f"main loop, {loop['waves']} waves of a SIMD, {clk} clocks", "busy clocks", loop["busy"])
    stalls = {name: f"{value:.0f}" for name, value in simulated["stalls"].items()}
    _pairs("a wave waits for", "clocks", stalls)
    write_text(
        f"bound: {loop['bound']}; predicted matrix utilisation"
        f" {simulated['matrix_utilisation']:.3f}, {loop['tflops']:.0f} TFLOP/s at"
        f" {loop['clock_ghz']} GHz (a static model, not a measurement)\n\n"
    )


def _pairs(name: str, value: str, pairs: dict[str, Any]) -> None:
    shown = table(name, value, right=(value,))
    for key, number in pairs.items():
        if number is not None:
            shown.add_row(key, str(number))
    write_table(shown)
    write_text("")
