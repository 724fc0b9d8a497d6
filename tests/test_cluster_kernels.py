"""Kernels of clusters: right on the emulator, and faults planted in what they share are found."""

import dataclasses
import functools

import numpy.typing as npt
import pytest
from cases import Case
from emulated import emulate, plan_of, with_text
from faults import WRONG_RESULT, Edit, Fault

from fmhagen.emission import emit_source
from fmhagen.errors import EmulatorError, ScheduleError
from fmhagen.lowering import lower
from fmhagen.oracle.comparison import compare, tolerance_of
from fmhagen.plan.attention import Plan
from fmhagen.runtime.emulator_backend import EmulatorOptions
from fmhagen.schedule import Schedule
from fmhagen.source import Source
from fmhagen.spec import AttentionSpec
from fmhagen.targets import find_target

SEEDS = range(10)
SPEC = AttentionSpec(head_dim=64, causal=True)
SCHEDULE = Schedule(
    main_loop="warp_specialised",
    tile_m=128,
    tile_n=64,
    consumers=2,
    stages=2,
    q_stages=2,
    persistent=True,
    cluster=2,
    producer_registers=40,
    consumer_registers=232,
)
VARIANTS = {
    "staged": {},
    "overflow": {"rescale": "on_overflow", "ping_pong": True},
    "two_p": {"rescale": "on_overflow", "p_buffers": 2},
    "direct": {"store": "direct", "q_stages": 1},
    "split_q": {"store": "direct", "q_stages": 1, "split_q": True, "ping_pong": True},
    "apart": {"overlap_tiles": False, "skip_hidden": True, "ping_pong": True},
    "split_apart": {
        **{"store": "direct", "q_stages": 1, "split_q": True, "overlap_tiles": False},
        **{"skip_hidden": True, "ping_pong": True, "stages": 3},
    },
    "wide_apart": {
        **{"tile_n": 128, "overlap_tiles": False},
        **{"rescale": "on_overflow", "ping_pong": True},
    },
    "grid": {"persistent": False},
}
SIZES = ((1, 64), (129, 300), (300, 257), (513, 100), (64, 0))


def schedule(variant: str, cluster: int) -> Schedule:
    return Schedule.from_dict({**SCHEDULE.to_dict(), **VARIANTS[variant], "cluster": cluster})


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(
    ("variant", "cluster"),
    [*((variant, 2) for variant in VARIANTS), ("split_q", 1), ("apart", 1), ("split_apart", 1)],
)
def test_o_and_lse_are_right(variant: str, *, causal: bool, cluster: int) -> None:
    spec = AttentionSpec(head_dim=64, causal=causal)
    plan = plan_of(spec, "sm90", schedule(variant, cluster))
    for seed, (rows, keys) in enumerate(SIZES):
        for magnitude, units in ((1.0, 2), (60.0, 5))[seed % 2 :]:
            case = Case(spec=spec, batch=2, rows=rows, keys=keys, magnitude=magnitude)
            tensors = tuple(tensor.numpy for tensor in case.placed())
            options = EmulatorOptions(seed=seed, compute_units=units)
            result = emulate(plan, tensors, options=options)
            case.check(result.o, result.lse)


def test_each_block_loads_a_share() -> None:
    case = Case(spec=SPEC, heads=1, heads_kv=1, rows=256, keys=256)
    tensors = tuple(tensor.numpy for tensor in case.placed())
    counts = {}
    for cluster in (1, 2):
        options = EmulatorOptions(compute_units=2)
        run = emulate(plan_of(SPEC, "sm90", schedule("staged", cluster)), tensors, options=options)
        counts[cluster] = run.report.instructions
    # rows 0 to 127 see two key tiles, the others four; each has a box of K and one of V
    assert counts[1]["tma.load"] == 2 + 2 * (2 + 4)
    # a cluster visits four, and each of its blocks loads half of every box for both
    assert counts[2]["tma.load"] == 2
    assert counts[2]["tma.load.multicast"] == 2 * 2 * 4


def fault(name: str, old: str, new: str, kinds: str, words: str, **more: int | None) -> Fault:
    edit = Edit(old=old, new=new, **more)
    return Fault(
        name=name, edits=(edit,), kinds=tuple(kinds.split()), words=tuple(words.split("|"))
    )


FAULTS = (
    fault(
        "no_barrier_before_barriers_are_used",
        *("cluster_sync();", "block_sync();", "barrier race", "no barrier was|initialisation"),
        count=2,
        only=0,
    ),
    fault(
        "no_barrier_before_exit",
        *("cluster_sync();", ";", "race", "whose exit is not ordered after it"),
        count=2,
        only=1,
    ),
    fault("own_block_alone", "(1u << CLUSTER) - 1", "1u << rank", "deadlock", "bytes pending"),
    fault("a_block_too_many", "(1u << CLUSTER) - 1", "7", "out_of_bounds", "of a cluster of 2"),
    fault(
        "no_arrival_in_the_other_block",
        *("if (lane < CLUSTER)", "if (lane == cluster_rank())", "deadlock", "EMPTY"),
    ),
    fault(
        "no_arrival_in_the_own_block",
        *("if (lane < CLUSTER)", "if (lane == 1 - cluster_rank())", "deadlock", "EMPTY"),
    ),
    fault(
        "arrivals_of_one_block_free_k",
        "mbarrier_init(smem + K_EMPTY + stage * BARRIER_BYTES, CLUSTER * CONSUMER_WARPS);",
        "mbarrier_init(smem + K_EMPTY + stage * BARRIER_BYTES, CONSUMER_WARPS);",
        *("race barrier", "SMEM_K|K_EMPTY|K_FULL"),
    ),
    fault(
        "both_load_the_first_share",
        *("rank * (BOX_BYTES / CLUSTER)", "0", "race uninitialised", "SMEM_K|SMEM_V"),
    ),
    fault(
        "both_read_the_first_share",
        *("row + rank * (TILE_N / CLUSTER)", "row", WRONG_RESULT.replace(" ", "_"), ""),
    ),
    fault(
        "blocks_visit_other_keys",
        *("(CLUSTER - cluster_rank()) * TILE_M", "TILE_M"),
        *("deadlock race unfinished barrier", ""),
    ),
)


@functools.cache
def clean(head_dim: int = 64) -> tuple[Plan, Source]:
    plan = plan_of(dataclasses.replace(SPEC, head_dim=head_dim), "sm90", SCHEDULE)
    return plan, emit_source(plan)


@functools.cache
def call(head_dim: int) -> tuple[tuple[npt.NDArray, ...], tuple[npt.NDArray, ...]]:
    spec = dataclasses.replace(SPEC, head_dim=head_dim)
    case = Case(spec=spec, heads=4, heads_kv=2, rows=400, keys=500)
    return tuple(tensor.numpy for tensor in case.placed()), case.expected()


def diagnose(text: str, seed: int, head_dim: int = 64) -> tuple[str, str]:
    """Return the kind of alarm that one run of a text raises, and its message; "" if none."""
    plan, source = clean(head_dim)
    tensors, expected = call(head_dim)
    options = EmulatorOptions(seed=seed, compute_units=2)
    try:
        result = emulate(plan, tensors, source=with_text(source, text), options=options)
    except EmulatorError as error:
        return error.kind, str(error)
    found = compare(result.o, result.lse, *expected)
    return ("", "") if found.within(tolerance_of(SPEC.dtype)) else ("wrong_result", str(found))


@pytest.mark.parametrize("planted", FAULTS, ids=lambda planted: planted.name)
def test_a_fault_is_found_under_every_seed(planted: Fault) -> None:
    text = planted.apply(clean()[1].text)
    for seed in SEEDS[:: 1 if "wrong_result" not in planted.kinds else 5]:
        kind, message = diagnose(text, seed)
        assert kind, f"seed {seed}: no alarm"
        assert kind in planted.kinds, f"seed {seed}: {message}"
        assert any(word in message for word in planted.words), f"seed {seed}: {message}"


@pytest.mark.parametrize("seed", SEEDS[::7])
def test_a_rank_in_a_descriptor_is_found(seed: int) -> None:
    """The addresses of block 1 hold its rank; it lands in the distance between boxes of V."""
    edit = Edit(old=" % (1u << 14)", new="", count=3)
    kind, message = diagnose(edit.apply(clean(128)[1].text), seed, 128)
    assert kind in ("matrix", "out_of_bounds", "uninitialised", "race"), message
    assert "wgmma by block" in message


def test_no_alarm_in_clean_runs() -> None:
    text = clean()[1].text
    for seed in SEEDS:
        assert diagnose(text, seed) == ("", "")


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"cluster": 3}, "cluster"),
        ({"cluster": 0}, "cluster"),
        ({"split_q": True}, "split_q"),
        ({"skip_hidden": True}, "skip_hidden"),
    ],
)
def test_what_does_not_fit_is_refused(changes: dict[str, int], field: str) -> None:
    refused = Schedule.from_dict({**SCHEDULE.to_dict(), **changes})
    with pytest.raises(ScheduleError) as caught:
        lower(SPEC, refused, find_target("sm90"))
    assert field in str(caught.value)
