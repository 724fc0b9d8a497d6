"""The wave-interleaved lowering: what it decides and refuses, and what compilers make of it."""

import dataclasses
import itertools

import pytest

from fmhagen.compile import compile_source
from fmhagen.compile.code_object import read_metadata
from fmhagen.emission import emit_source
from fmhagen.errors import CompilerNotFoundError, ScheduleError
from fmhagen.lowering import lower
from fmhagen.plan.attention import Plan
from fmhagen.schedule import Schedule
from fmhagen.select import candidates, default_schedule
from fmhagen.spec import AttentionSpec
from fmhagen.targets import GFX942

SPECS = tuple(
    AttentionSpec(dtype=dtype, head_dim=head_dim, causal=causal)
    for dtype, head_dim, causal in itertools.product(("bf16", "fp16"), (64, 128), (False, True))
)


def plan_of(spec: AttentionSpec, **changes: object) -> Plan:
    """Lower a spec with its default schedule, changed."""
    schedule = default_schedule(spec, GFX942)
    return lower(spec, Schedule(**{**schedule.to_dict(), **changes}), GFX942)


@pytest.mark.parametrize("spec", SPECS, ids=repr)
def test_every_candidate_fits_the_lds(spec: AttentionSpec) -> None:
    for schedule in candidates(spec, GFX942):
        plan = lower(spec, schedule, GFX942)
        assert plan.shared_bytes <= GFX942.shared_memory_per_block_bytes
        assert plan.threads == 2 * schedule.tile_m
        assert plan.grid.max_blocks % 8 == 0  # a block's XCD is its index modulo 8


@pytest.mark.parametrize(
    ("field", "changes"),
    [
        ("tile_m", {"tile_m": 128}),
        ("tile_n", {"tile_n": 96}),
        ("tile_n", {"tile_n": 32}),
        ("consumers", {"tile_n": 128}),
        ("prefetch", {"prefetch": 1}),
        ("consumers", {"consumers": 3, "tile_m": 96}),
        ("stages", {"stages": 3}),
        ("q_stages", {"q_stages": 2}),
        ("rescale", {"rescale": "on_overflow"}),
        ("consumer_registers", {"consumer_registers": 240}),
    ],
)
def test_refusals_name_the_field(field: str, changes: dict[str, object]) -> None:
    with pytest.raises(ScheduleError) as caught:
        plan_of(AttentionSpec(head_dim=128), **changes)
    assert caught.value.field == field


def test_instances_that_differ_in_numbers_differ_in_constants_alone() -> None:
    texts = []
    for consumers in (4, 8):
        changes = {"main_loop": "wave_interleaved", "consumers": consumers, "prefetch": 0}
        plan = plan_of(AttentionSpec(), tile_m=32 * consumers, **changes)
        body = emit_source(plan).text.partition("// --- body ---\n")[2]
        texts.append(body.replace(plan.symbol, "symbol").splitlines())
    changed = [pair for pair in zip(*texts, strict=True) if pair[0] != pair[1]]
    assert changed
    assert all(line.startswith("constexpr ") for line, _ in changed)


DEEP = tuple(
    AttentionSpec(head_dim=d, head_dim_v=dv, causal=causal)
    for (d, dv), causal in itertools.product(
        ((96, 96), (160, 160), (192, 128), (192, 192), (224, 128), (256, 256)), (False, True)
    )
)


@pytest.mark.parametrize("compiler", ["zig", "clang", "hiprtc"])
@pytest.mark.parametrize("spec", SPECS + DEEP, ids=repr)
def test_no_instance_spills_or_uses_scratch(spec: AttentionSpec, compiler: str) -> None:
    for schedule in candidates(spec, GFX942):
        plan = lower(spec, schedule, GFX942)
        source = emit_source(plan)
        try:
            resources = compile_source(source, compiler=compiler).resources
        except CompilerNotFoundError as missing:
            pytest.skip(str(missing))
        assert resources.clean, f"{source.symbol}: {resources}"
        if plan.uses_accumulation_registers:
            assert resources.registers <= GFX942.max_registers_per_thread
        else:
            assert resources.registers <= GFX942.max_registers_per_thread // 2
            assert not resources.accumulator_registers


@pytest.mark.parametrize("spec", SPECS[:2] + DEEP[:2], ids=repr)
def test_a_code_object_takes_the_block_of_its_plan(spec: AttentionSpec) -> None:
    # A launch hands over one address; HIP copies as many bytes as the code object says.
    plan = lower(spec, default_schedule(spec, GFX942), GFX942)
    try:
        binary = compile_source(emit_source(plan), compiler="zig")
    except CompilerNotFoundError as missing:
        pytest.skip(str(missing))
    (kernel,) = read_metadata(binary.image)["amdhsa.kernels"]
    assert kernel[".name"] == plan.symbol
    first, *hidden = kernel[".args"]
    assert first[".offset"] == 0
    assert first[".size"] == plan.params_bytes
    assert first[".value_kind"] == "by_value"
    for argument in hidden:
        assert argument[".value_kind"].startswith("hidden_")
        assert argument[".offset"] >= plan.params_bytes
    assert kernel[".max_flat_workgroup_size"] == plan.threads
    assert kernel[".wavefront_size"] == 64


def test_a_number_of_the_plan_reaches_the_text_once() -> None:
    plan = plan_of(AttentionSpec(causal=True))
    text = emit_source(plan).text
    for constant in plan.constants:
        assert text.count(f" {constant.name} = ") == 1
    assert dataclasses.replace(plan) == plan
