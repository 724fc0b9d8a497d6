"""Rules for lengths that a caller knows."""

from __future__ import annotations

import dataclasses

from fmhagen.formula import score_of
from fmhagen.select.choice import Choice
from fmhagen.select.rules.work import may_cluster
from fmhagen.spec import AttentionSpec

SHARED_KEYS = 8192
"""Keys from which on two blocks share K and V under a causal mask at head dims above 192.

The card stands at its power limit, and L2 serves half as many sectors: 0.5 and 1.1 % at 16384 and
8192 keys, the mean of three runs on H200s; below, blocks that wait for one another lose more, 1.3 %
at 4096.
"""
_WHY_SHARED = "cluster 2: at its power limit the card gains by what L2 need not read twice"


def shares_keys(spec: AttentionSpec, seqlen_hint: int | None) -> bool:
    """Return whether two blocks load K and V for each other at this length."""
    deep = max(spec.d, spec.dv) > 192
    plain = score_of(spec) is None and spec.causal and may_cluster(spec)
    return deep and plain and seqlen_hint is not None and seqlen_hint >= SHARED_KEYS


def sharing(choice: Choice) -> Choice:
    """Return a choice whose blocks come in clusters, if that is among what it rejected."""
    best = dataclasses.replace(choice.schedule, cluster=2)
    if all(schedule != best for schedule, _ in choice.rejected):
        return choice
    others = tuple((other, why) for other, why in choice.rejected if other != best)
    short = (choice.schedule, f"quicker below {SHARED_KEYS} keys")
    return dataclasses.replace(
        choice,
        schedule=best,
        reasons=(*choice.reasons, _WHY_SHARED),
        rejected=(short, *others),
    )
