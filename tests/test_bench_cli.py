"""`fmhagen bench` with a judge that measures nothing: tables, JSON, documents, budgets."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from fmhagen.bench import plot as plot_module
from fmhagen.bench.contest import MISSING, OK, OURS, REFUSED, Contest, Outcome
from fmhagen.bench.markdown import markdown
from fmhagen.bench.report import geometric_mean, means, rows, under
from fmhagen.bench.run import Report, Settings, entries_for, run
from fmhagen.bench.selection import select
from fmhagen.bench.variants import ablations, parse_changes, variant
from fmhagen.bench.watch import BenchError
from fmhagen.bench.workloads import SUITES, grid, square, suite
from fmhagen.cli import app
from fmhagen.cli.bench import _command_line
from fmhagen.errors import InvalidSpecError
from fmhagen.lowering import lower
from fmhagen.select import choose
from fmhagen.spec import AttentionSpec
from fmhagen.targets import TARGETS, find_target

MS = {"fa3": 1.1, "cudnn": 1.3, OURS: 1.0, "fmhagen out=": 0.9}


class FakeJudge:
    """Gives fa3 1.1 ms, cuDNN 1.3, and fmhagen 1.0, which does not do head_dim 256."""

    def __init__(self, status: str = OK) -> None:
        self.status = status
        self.contests: list[Contest] = []

    def __enter__(self) -> FakeJudge:
        return self

    def __exit__(self, *exception: object) -> None:
        pass

    def ask(self, job: str, **more: Any) -> Any:
        if job == "facts":
            return {"name": "NVIDIA H200", "torch": "2.11.0", "cuda": "13.0", "cudnn": 91900}
        if job == "peers":
            return {name: {"missing": None, "version": f"{name} 1.0"} for name in more["names"]}
        return 778.0

    def hold(self, contest: Contest) -> tuple[Outcome, ...]:
        self.contests.append(contest)
        return tuple(self.outcome(entry.name, contest) for entry in contest.entries)

    def outcome(self, name: str, contest: Contest) -> Outcome:
        if name == "fa4":
            return Outcome(name=name, status=MISSING, reason="install: pip install flash-attn-4")
        if name.startswith(OURS):
            if contest.workload.spec.d == 256:
                return Outcome(name=name, status=REFUSED, reason="head_dim=256: supported are ..")
            if self.status != OK:
                return Outcome(name=name, status=self.status, reason="it went ill")
        ms = MS.get(name, 1.2)
        method = "host" if contest.on_host else "graph"
        return Outcome(
            name=name, status=OK, milliseconds=(ms, ms, ms * 1.02), method=method, error_rms=2e-3
        )


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> FakeJudge:
    made = FakeJudge()
    monkeypatch.setattr("fmhagen.cli.bench.judge", lambda seconds: made)
    return made


def call(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["bench", *arguments])


def test_the_forward_suite_is_the_grid(held: FakeJudge, tmp_path: Path) -> None:
    file = tmp_path / "forward.json"
    done = call("--suite", "forward", "--peers", "fa3,fa4,cudnn", "--json", str(file))
    assert done.exit_code == 0, done.output
    assert len(held.contests) == 36
    sizes = {(c.workload.batch * c.workload.seqlen_q, c.workload.heads) for c in held.contests}
    assert sizes == {(16384, 32), (16384, 16), (16384, 8)}
    assert "geometric mean of the ratio to the best peer, all: 1.100 over 24" in done.stdout
    assert "fmhagen: refused: head_dim=256" in done.stdout
    assert "fa4: missing: install: pip install flash-attn-4 [36 workloads" in done.stdout
    assert "bf16 d128 causal b4 h16 s4096" in done.stdout
    data = json.loads(file.read_text())
    assert data["ceiling"]["cublas_tflops"] == 778.0
    assert data["settings"]["section"] == "forward"
    assert data["command"].startswith("fmhagen")
    assert len(data["results"]) == 36
    assert json.loads(json.dumps(Report.from_dict(data).to_dict())) == data


def test_a_report_is_shown_and_written_into_a_document(held: FakeJudge, tmp_path: Path) -> None:
    file, document = tmp_path / "r.json", tmp_path / "performance.md"
    first = call("--head-dim", "64,128", "--seqlen", "1024", "--peers", "fa3", "--json", str(file))
    document.write_text("a\n<!-- bench: custom -->\nold\n<!-- end of bench -->\nz\n")
    again = call("--report", str(file), "--markdown", str(document))
    assert again.exit_code == 0, again.output
    assert again.stdout == first.stdout
    text = document.read_text()
    assert "old" not in text
    assert text.startswith("a\n<!-- bench: custom -->\nNVIDIA H200; ")
    assert text.endswith("<!-- end of bench -->\nz\n")
    assert "| bf16 d64 full b16 h32 s1024 |" in text
    wrong = call("--report", str(file), "--markdown", str(file))
    assert wrong.exit_code == 1
    assert "<!-- bench: custom -->" in wrong.output


def test_ablation_is_a_table_of_slowdowns(held: FakeJudge, tmp_path: Path) -> None:
    file = tmp_path / "a.json"
    done = call("--head-dim", "128", "--seqlen", "4096", "--ablate", "--json", str(file))
    assert done.exit_code == 0, done.output
    names = [entry.name for entry in held.contests[0].entries]
    assert "fmhagen ping_pong=False" in names
    text = markdown(Report.from_dict(json.loads(file.read_text())))
    assert "| ping_pong=False | 1.200 | 1.200 | 1.200 |" in text
    assert "| default, TFLOP/s over visible pairs |" in text


def test_host_suite(held: FakeJudge, tmp_path: Path) -> None:
    done = call("--suite", "host", "--peers", "fa3", "--json", str(tmp_path / "h.json"))
    assert done.exit_code == 0, done.output
    assert "us of host time a call" in done.stdout
    assert [e.name for e in held.contests[0].entries] == [OURS, "fmhagen out=", "fa3"]
    assert [e.with_out for e in held.contests[0].entries][:2] == [False, True]
    assert "| fmhagen | 1000.0 |" in markdown(
        Report.from_dict(json.loads((tmp_path / "h.json").read_text()))
    )


@pytest.mark.parametrize("status", ["wrong", "failed", "hung"])
def test_a_kernel_that_goes_wrong_fails_the_bench(held: FakeJudge, status: str) -> None:
    held.status = status
    done = call("--head-dim", "64", "--seqlen", "1024")
    assert done.exit_code == 1
    assert f"fmhagen: {status}: it went ill" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (("--suite", "fowrard"), "forward"),
        (("--peers", "fa33"), "fa3"),
        (("--head-dim", "12x"), "head_dim"),
        (("--mask", "casual"), "causal"),
        (("--variant", "pingpong=1"), "ping_pong"),
        (("--variant", "ping_pong"), "FIELD=VALUE"),
        (("--suite", "quick", "--seqlen", "3"), "nothing is left"),
        (("--head-dim", "64", "--heads", "6", "--heads-kv", "4"), "divide"),
    ],
)
def test_a_wrong_command_line_names_the_word(
    held: FakeJudge, arguments: tuple[str, ...], word: str
) -> None:
    done = call(*arguments)
    assert done.exit_code == 2
    assert word in done.output


def test_a_budget_leaves_workloads_out_by_name() -> None:
    now = iter((0.0, 1.0, 5.0, 11.0, 12.0)).__next__
    workloads = grid((64,), ("full",), (512, 1024, 2048, 4096))
    report = run(
        workloads,
        lambda workload: entries_for(("fa3",)),
        FakeJudge(),  # type: ignore[arg-type]
        Settings(max_seconds=10.0),
        Report(command="fmhagen bench"),
        clock=now,
    )
    assert [r.workload.seqlen_q for r in report.results] == [512, 1024]
    assert [item["name"] for item in report.not_run] == [w.name for w in workloads[2:]]


def test_means_and_thresholds() -> None:
    assert geometric_mean([]) is None
    assert geometric_mean([2.0, 8.0]) == pytest.approx(4.0)
    report = run(
        grid((64, 128), ("full",), (512, 1024)),
        lambda workload: entries_for(("fa3", "cudnn")),
        FakeJudge(),  # type: ignore[arg-type]
        Settings(),
        Report(command="fmhagen bench"),
    )
    found = rows(report)
    assert all(row.best is not None and row.best.name == "fa3" for row in found)
    assert [(m.title, m.count) for m in means(found)] == [
        ("head_dim 64", 2),
        ("head_dim 128", 2),
        ("all", 4),
    ]
    assert under(found, 1.05) == ()
    assert len(under(found, 1.2)) == 4


def test_flops_count_the_visible_pairs() -> None:
    full = square(AttentionSpec(), 4096)
    assert full.flops == 4 * 4 * 16 * 4096 * 4096 * 128
    assert square(AttentionSpec(causal=True), 4096).flops == full.flops / 2
    wide = suite("latent")[0]
    assert wide.flops == 2 * 4 * 16 * 4096 * 4096 * (192 + 128)


@pytest.mark.parametrize("name", SUITES)
def test_suites_are_not_empty_and_have_no_twins(name: str) -> None:
    found = suite(name)
    assert found
    assert len({workload.name for workload in found}) == len(found)


def test_a_suite_is_narrowed_and_converted() -> None:
    found = select("forward", "128", "causal", "512,1024", "fp16", 16384, 2048)
    assert [w.name for w in found] == [
        "fp16 d128 causal b32 h16 s512",
        "fp16 d128 causal b16 h16 s1024",
    ]


def test_variants_and_ablations_differ_from_the_default_and_can_be_lowered() -> None:
    assert parse_changes("ping_pong=False, tile_n=80,rescale=always") == {
        "ping_pong": False,
        "tile_n": 80,
        "rescale": "always",
    }
    sm90, plain = find_target("sm90"), square(AttentionSpec(), 4096)
    entry = variant("consumers=3,tile_n=80", plain, sm90)
    assert entry.schedule is not None
    assert entry.schedule.tile_m == 192
    assert lower(AttentionSpec(), entry.schedule, sm90)
    assert variant("stages=3", square(AttentionSpec(head_dim=512), 512), sm90).schedule is None
    for target in TARGETS:
        default = choose(AttentionSpec(), target).schedule
        for entry in ablations(plain, target):
            assert entry.schedule is not None
            assert entry.schedule != default
            assert lower(AttentionSpec(), entry.schedule, target)


def test_a_plot_without_matplotlib_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, held: FakeJudge, tmp_path: Path
) -> None:
    def missing(name: str) -> Any:
        raise ImportError(name)

    monkeypatch.setattr(plot_module, "importlib", SimpleNamespace(import_module=missing))
    done = call("--head-dim", "64", "--plot", str(tmp_path / "p.png"))
    assert done.exit_code == 1
    assert "pip install matplotlib" in done.output
    assert "d64 full" in done.stdout  # what was measured is shown all the same


def test_a_command_is_stated_without_folders_and_commit() -> None:
    words = ["bench", "--commit", "abc", "--json", "/tmp/out/f.json", "--commit=d", "--rounds", "7"]
    assert _command_line(words) == "fmhagen bench --json f.json --rounds 7"


def test_a_report_of_another_schema_is_refused() -> None:
    with pytest.raises(BenchError, match="schema"):
        Report.from_dict({"schema": 99})
    with pytest.raises(InvalidSpecError):
        suite("none")


@pytest.mark.parametrize("name", ["bench", "tune"])
def test_help_teaches_with_examples(name: str) -> None:
    done = CliRunner().invoke(app, [name, "--help"])
    assert done.exit_code == 0
    assert "Examples:" in done.stdout
    assert f"fmhagen {name} --head-dim 128" in done.stdout
    assert "--json" in done.stdout
    assert "\\[" not in done.stdout
