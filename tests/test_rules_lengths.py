"""Schedules that depend on a length which the caller knows."""

from __future__ import annotations

import numpy as np
import pytest
from cases import Case
from emulated import emulate, plan_of

from fmhagen.dispatch import attention
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


def test_a_call_says_whether_its_sequences_are_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """In two classes and where that chooses something, so that calls share kernels."""
    asked: list[int | None] = []

    class AskedError(Exception):
        pass

    def ask(*_: object, seqlen_hint: int | None, **__: object) -> None:
        asked.append(seqlen_hint)
        raise AskedError

    monkeypatch.setattr("fmhagen.api.compile_kernel", ask)
    monkeypatch.setattr("fmhagen.dispatch.shipped_rows", tuple)
    for d, keys, options, hint in (
        (256, SHARED_KEYS - 1, {"causal": True}, None),
        (256, SHARED_KEYS, {"causal": True}, SHARED_KEYS),
        (256, 3 * SHARED_KEYS, {"causal": True}, SHARED_KEYS),
        (256, SHARED_KEYS, {}, None),
        (128, SHARED_KEYS, {"causal": True}, None),
    ):
        q, k = (np.zeros((1, n, 1, d), np.float16) for n in (1, keys))
        for layout, tensors in (("bshd", (q, k, k)), ("bhsd", (q, k, k))):
            given = [t if layout == "bshd" else t.transpose(0, 2, 1, 3) for t in tensors]
            with pytest.raises(AskedError):
                attention(*given, layout=layout, **options)
            assert asked.pop() == hint
