"""Properties of every emitted file: text, determinism, the committed tree and its manifest."""

from __future__ import annotations

import dataclasses
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import fmhagen
import fmhagen.api
from fmhagen.appending.plan import can_append
from fmhagen.committed.inventory import (
    APPEND_SPECS,
    MAP_SPECS,
    MERGE_SPECS,
    compare,
    digest_holds,
    files_under,
    generated_dir,
    instances,
    render_all,
    write_if_different,
)
from fmhagen.committed.manifest import MANIFEST, Measurement, read_manifest
from fmhagen.compile.binary import Resources
from fmhagen.emission import BODY_LINE
from fmhagen.instance import Instance
from fmhagen.schedule import Schedule
from fmhagen.source import Source
from fmhagen.spec import AttentionSpec
from fmhagen.targets import TARGETS

REPOSITORY = Path(__file__).parent.parent
INSTANCES = instances()
KERNELS = len(INSTANCES) + (len(MAP_SPECS) + len(MERGE_SPECS)) * len(TARGETS)
KERNELS += sum(can_append(spec, target) for spec in APPEND_SPECS for target in TARGETS)
IDS = [instance.plan().symbol for instance in INSTANCES]

every_instance = pytest.mark.parametrize("instance", INSTANCES, ids=IDS)


def body_of(text: str) -> str:
    return text.partition(BODY_LINE)[2]


def code_of(text: str) -> str:
    """Return the body without comments."""
    return re.sub(r"//[^\n]*", "", body_of(text))


def recreate(expression: str) -> Source:
    names = {"fmhagen": fmhagen, "emit": fmhagen.api.emit, "emit_merge": fmhagen.emit_merge}
    names |= {name: getattr(fmhagen, name) for name in ("emit_append", "emit_map")}
    records = ("AppendSpec", "AttentionSpec", "MapSpec", "MaskMod", "MergeSpec", "Schedule")
    names |= {name: getattr(fmhagen, name) for name in records}
    source: Source = eval(expression, names)
    return source


@every_instance
def test_is_one_self_contained_file(instance: Instance) -> None:
    text = instance.source().text
    assert "#include" not in text
    assert text.startswith("// clang-format off\n")
    assert text.endswith("\n")
    assert text.isascii()
    assert 'extern "C" __global__ void __launch_bounds__(THREADS' in re.sub(r"\s+", " ", text)


@every_instance
def test_nothing_of_the_generator_shows(instance: Instance) -> None:
    body = body_of(instance.source().text)
    assert not re.search(r"\b(None|True|False|nan|inf)\b", code_of(instance.source().text))
    # A quoted "{%0, %1}" is an operand list of PTX.
    assert not re.search(r"\{\{|\}\}|\{%(?!\d)|%\}|\{#|#\}|plan\.", body)
    assert not re.search(r"<[\w.]+ object at|/home/|/tmp/|/work/|/usr/", instance.source().text)


@every_instance
def test_header_recreates_the_file(instance: Instance) -> None:
    source = instance.source()
    call = re.search(r"// Recreate with\n((?://     .*\n)+)", source.text)
    assert call is not None
    expression = "\n".join(line.removeprefix("//") for line in call[1].splitlines())
    expression = expression.strip().replace("fmhagen.emit(", "emit(")
    assert recreate(expression).text == source.text


def test_the_call_in_the_header_is_the_public_one() -> None:
    source = INSTANCES[0].source()
    call = re.search(r"// Recreate with\n((?://     .*\n)+)", source.text)
    assert call is not None
    expression = "\n".join(line.removeprefix("//") for line in call[1].splitlines())
    assert recreate(expression.strip()).text == source.text


@every_instance
def test_digest_is_that_of_the_body(instance: Instance) -> None:
    source = instance.source()
    assert digest_holds(source.text)
    assert source.digest in source.text.partition(BODY_LINE)[0]
    assert not digest_holds(source.text.replace("TILE_M", "TILE_W"))


@every_instance
def test_every_constant_is_used(instance: Instance) -> None:
    code = code_of(instance.source().text)
    unused = [
        constant.name
        for constant in instance.plan().constants
        if len(re.findall(rf"\b{constant.name}\b", code)) < 2
    ]
    assert not unused


@every_instance
def test_every_parameter_is_used(instance: Instance) -> None:
    # The block is the same with and without a mask.
    spared = set() if instance.spec.causal else {"causal_offset"}
    code = code_of(instance.source().text)
    unused = [
        field.name
        for field in instance.plan().params
        if len(re.findall(rf"\b{field.name}\b", code)) < 2 and field.name not in spared
    ]
    assert not unused


@every_instance
def test_every_function_stands_above_its_uses(instance: Instance) -> None:
    code = code_of(instance.source().text)
    pattern = r"^(?:template <.*?>\s+)?FMHAGEN_DEVICE\b[^(;{]*?\b(\w+)\([^{;]*\) \{"
    found = list(re.finditer(pattern, code, re.MULTILINE))
    assert found
    first = {match[1]: match for match in reversed(found)}  # of functions with one name
    for match in first.values():
        assert not re.search(rf"\b{match[1]}\(", re.sub(r'"[^"\n]*"', "", code[: match.start()]))


def test_the_fastest_causal_kernel_is_short() -> None:
    """The causal kernel of head_dim 128, prelude included, is read from top to bottom."""
    source = Instance.of(AttentionSpec(causal=True), TARGETS[0]).source()
    assert source.target == "sm90"
    assert "d128" in source.symbol
    assert source.text.count("\n") < 600


def sections(text: str, symbol: str) -> dict[str, str]:
    """Split a file at its marker lines; the symbol, which holds the tile sizes, is neutral."""
    parts = re.split(r"^// --- ([\w -]+)[^\n]*\n", text.replace(symbol, "SYMBOL"), flags=re.M)
    named = dict(zip(parts[1::2], parts[2::2], strict=True))
    return {"header": parts[0], **named}


NUMBERS_ONLY = (
    (Instance.of(AttentionSpec(head_dim=128), TARGETS[0]), {"stages": 1}),
    (Instance.of(AttentionSpec(head_dim=64, causal=True), TARGETS[0]), {"stages": 5}),
    (
        dataclasses.replace(
            Instance.of(AttentionSpec(head_dim=64), TARGETS[1]),
            schedule=Schedule(main_loop="wave_interleaved", tile_m=256, tile_n=128, consumers=8),
        ),
        {"tile_m": 128, "consumers": 4},
    ),
)


@pytest.mark.parametrize(
    ("instance", "change"), NUMBERS_ONLY, ids=[i.plan().symbol for i, _ in NUMBERS_ONLY]
)
def test_a_change_of_numbers_stays_in_the_constants(
    instance: Instance, change: dict[str, int]
) -> None:
    schedule = dataclasses.replace(instance.schedule, **change)
    other = dataclasses.replace(instance, schedule=schedule)
    before = sections(instance.source().text, instance.plan().symbol)
    after = sections(other.source().text, other.plan().symbol)
    assert before.keys() - {"shared memory"} == after.keys() - {"shared memory"}
    changed = {name for name in before if before[name] != after[name]}
    assert "constants" in changed
    assert changed <= {"header", "constants", "shared memory"}


def test_same_bytes_under_any_hash_seed(tmp_path: Path) -> None:
    trees = []
    for seed in ("0", "1", "4242"):
        directory = tmp_path / seed
        command = (sys.executable, "-m", "fmhagen", "emit", "--all", "--no-resources")
        subprocess.run(
            (*command, "--dir", str(directory)),
            env={**os.environ, "PYTHONHASHSEED": seed},
            cwd=REPOSITORY,
            check=True,
            capture_output=True,
        )
        trees.append({path: (directory / path).read_bytes() for path in files_under(directory)})
    assert len(trees[0]) == KERNELS + 1
    assert trees[0] == trees[1] == trees[2]


def test_committed_tree_is_what_is_emitted() -> None:
    differences = compare(generated_dir(), render_all(generated_dir()))
    assert not differences, "run: fmhagen emit --all\n" + "\n".join(d.diff for d in differences)


def test_manifest_and_directory_match_both_ways() -> None:
    listed = read_manifest(generated_dir() / MANIFEST)
    assert sorted({*listed, MANIFEST}) == list(files_under(generated_dir()))
    assert len(listed) == KERNELS


def test_manifest_recreates_every_file() -> None:
    for path, entry in read_manifest(generated_dir() / MANIFEST).items():
        source = recreate(entry.constructor)
        assert source.digest == entry.digest
        assert source.symbol == entry.symbol
        assert source.text == (generated_dir() / path).read_text(encoding="ascii")


def test_manifest_shows_that_nothing_spills() -> None:
    for path, entry in read_manifest(generated_dir() / MANIFEST).items():
        assert entry.measurement is not None, f"{path}: run fmhagen emit --all"
        assert entry.measurement.resources.clean, path


def test_inventory_covers_every_structure_on_every_target() -> None:
    for target in TARGETS:
        specs = [instance.spec for instance in INSTANCES if instance.target == target]
        assert {spec.dtype for spec in specs} == {"bf16", "fp16"}
        assert {spec.d for spec in specs} >= {64, 128, 192, 256}
        assert any(spec.dv != spec.d for spec in specs)
        masks = {(spec.causal, str(spec.anchor)) for spec in specs}
        assert len(masks) == 3
    assert len(set(IDS)) == len(IDS)


def test_a_file_that_is_right_is_not_touched(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "file.cu"
    assert write_if_different(path, "text\n")
    before = path.stat()
    assert not write_if_different(path, "text\n")
    assert path.stat().st_mtime_ns == before.st_mtime_ns
    assert write_if_different(path, "other\n")
    assert path.read_text() == "other\n"
    assert list(path.parent.iterdir()) == [path]


def test_resources_are_kept_only_for_an_unchanged_kernel(tmp_path: Path) -> None:
    resources = Resources(
        registers=99, spill_bytes=0, stack_bytes=0, static_shared_bytes=0, dynamic_shared_bytes=0
    )
    files = render_all(tmp_path, lambda _: Measurement(compiler="none 1", resources=resources))
    assert files[MANIFEST].count("registers = 99") == KERNELS
    (tmp_path / MANIFEST).write_text(files[MANIFEST])
    assert render_all(tmp_path) == files
    stale = re.sub(r'digest = "\w+"', 'digest = "0000000000000000"', files[MANIFEST], count=1)
    (tmp_path / MANIFEST).write_text(stale)
    assert render_all(tmp_path)[MANIFEST].count("registers = 99") == KERNELS - 1
