"""Schedules that depend on a length which the caller knows."""

from __future__ import annotations

import pytest
from cases import Case
from emulated import emulate, plan_of

from fmhagen.runtime.emulator_backend import EmulatorOptions
from fmhagen.select import choose
from fmhagen.select.rules.lengths import SHARED_KEYS
from fmhagen.spec import AttentionSpec
from fmhagen.targets import find_target

DEEP = AttentionSpec(head_dim=256, causal=True)
SM90 = find_target("sm90")


@pytest.mark.parametrize(
    ("spec", "hint", "cluster"),
    [
        (DEEP, None, 1),
        (DEEP, SHARED_KEYS - 1, 1),
        (DEEP, SHARED_KEYS, 2),
        (AttentionSpec(head_dim=256), SHARED_KEYS, 1),
        (AttentionSpec(head_dim=192, causal=True), SHARED_KEYS, 1),
        (AttentionSpec(head_dim=256, causal=True, alibi=True), SHARED_KEYS, 1),
        (AttentionSpec(head_dim=256, causal=True, window_left=4095), SHARED_KEYS, 1),
        (AttentionSpec(head_dim=256, causal=True, varlen=True), SHARED_KEYS, 1),
        (AttentionSpec(head_dim=256, causal=True, kv_cache=True), SHARED_KEYS, 1),
    ],
)
def test_blocks_share_keys_where_sequences_are_long(
    spec: AttentionSpec, hint: int | None, cluster: int
) -> None:
    choice = choose(spec, SM90, seqlen_hint=hint, rows=())
    assert choice.schedule.cluster == cluster
    assert choice.schedule not in [schedule for schedule, _ in choice.rejected]
    if cluster == 2:
        assert choice.rejected[0][0] == choose(spec, SM90, rows=()).schedule
        assert str(SHARED_KEYS) in choice.rejected[0][1]


def test_the_kernel_for_long_sequences_is_right() -> None:
    plan = plan_of(DEEP, "sm90", choose(DEEP, SM90, seqlen_hint=SHARED_KEYS).schedule)
    case = Case(spec=DEEP, batch=1, heads=2, heads_kv=1, rows=513, keys=600)
    tensors = tuple(tensor.numpy for tensor in case.placed())
    result = emulate(plan, tensors, options=EmulatorOptions(compute_units=5))
    case.check(result.o, result.lse)
