"""Score functions that everybody needs, as plain functions on expressions.

from fmhagen import scores
spec = AttentionSpec(score_mod=scores.soft_cap(50.0).then(scores.alibi(slopes)))
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import fmhagen.expr.functions as fn
from fmhagen.errors import InvalidSpecError
from fmhagen.expr.capture import declared
from fmhagen.expr.mods import ScoreMod


def soft_cap(cap: float) -> ScoreMod:
    """cap * tanh(score / cap).

    Args:
        cap: above 0; what no score passes.
    """
    if not (cap > 0 and math.isfinite(cap)):
        raise InvalidSpecError("cap", cap, "must be a finite number above 0")
    cap = float(cap)
    return ScoreMod(lambda score, b, h, q_idx, kv_idx: cap * fn.tanh(score / cap))


def alibi_slopes(heads: int) -> tuple[float, ...]:
    """Return the slopes of ALiBi for any number of heads.

    For a power of 2 they are 2^(-8 i / heads), i = 1..heads; else those of the power of 2 below,
    and then every other one of those of the power of 2 above (Press, Smith and Lewis, 'Train
    Short, Test Long', and the code beside it).
    """
    if isinstance(heads, bool) or not isinstance(heads, int) or heads < 1:
        raise InvalidSpecError("heads", heads, "must be an integer of at least 1")
    below = 1 << (heads.bit_length() - 1)
    slopes = [2.0 ** (-8.0 * i / below) for i in range(1, below + 1)]
    between = [2.0 ** (-8.0 * i / (2 * below)) for i in range(1, 2 * below + 1, 2)]
    return tuple((slopes + between)[:heads])


def alibi(slopes: Any, *, name: str = "slopes") -> ScoreMod:
    """score + slopes[h] * (n - m): FlexAttention's positions; the spec's `alibi` adds off.

    Args:
        slopes: (H,) or (B, H), a tensor.
        name: of the tensor.
    """
    slope = declared(name, slopes, finite=True)
    bound = {name: slopes}
    if len(slopes.shape) == 2:
        return ScoreMod(
            lambda score, b, h, q_idx, kv_idx: score + slope[b, h] * (kv_idx - q_idx), bound=bound
        )
    return ScoreMod(
        lambda score, b, h, q_idx, kv_idx: score + slope[h] * (kv_idx - q_idx), bound=bound
    )


def relative_bias(table: Any, *, name: str = "relative_bias") -> ScoreMod:
    """score + table[h, clip(n - m, -R, R) + R]: a learned bias by distance.

    Args:
        table: (H, 2 R + 1), a tensor; its numbers are finite.
        name: of the tensor.
    """
    if len(table.shape) != 2 or table.shape[1] % 2 == 0:
        limit = "must be (H, 2 R + 1): one bias a head and distance from -R to R"
        raise InvalidSpecError("table", str(tuple(table.shape)), limit)
    reach = table.shape[1] // 2
    bias = declared(name, table, finite=True)
    return ScoreMod(
        lambda score, b, h, q_idx, kv_idx: (
            score + bias[h, fn.clip(kv_idx - q_idx, -reach, reach) + reach]
        ),
        bound={name: table},
    )


def temperature(factors: Any, *, name: str = "temperature") -> ScoreMod:
    """score * factors[h]: a temperature a head, as its reciprocal.

    Args:
        factors: (H,), a tensor; its numbers are finite.
        name: of the tensor.
    """
    factor = declared(name, factors, finite=True)
    return ScoreMod(lambda score, b, h, q_idx, kv_idx: score * factor[h], bound={name: factors})


def additive(bias: Any, *, finite: bool = False, name: str = "bias") -> ScoreMod:
    """score + bias.

    Args:
        bias: (Sq, Sk), (B, Sq, Sk) or (B, H, Sq, Sk), a tensor; a size of 1 serves every index,
            and -inf hides a key.
        finite: no number of it is infinite: tiles that are fully visible are then a little faster.
        name: of the tensor.
    """
    term = declared(name, bias, finite=finite)
    functions: dict[int, Callable[..., Any]] = {
        2: lambda score, b, h, q_idx, kv_idx: score + term[q_idx, kv_idx],
        3: lambda score, b, h, q_idx, kv_idx: score + term[b, q_idx, kv_idx],
        4: lambda score, b, h, q_idx, kv_idx: score + term[b, h, q_idx, kv_idx],
    }
    if len(bias.shape) not in functions:
        limit = "must be (Sq, Sk), (B, Sq, Sk) or (B, H, Sq, Sk)"
        raise InvalidSpecError("bias", str(tuple(bias.shape)), limit)
    return ScoreMod(functions[len(bias.shape)], bound={name: bias})
