"""Time masks, score functions and packed sequences beside the plain kernel, FlexAttention and FA3.

    python benchmarks/language.py --json language.json
    python benchmarks/language.py --place cpu --seqlen 384 --heads 2 --only ALiBi,documents

Every kernel of fmhagen is compared with float64 before anything is timed. Then all of them and
their peers are timed in the same shuffled rounds. Speeds are TFLOP/s over the pairs that the mask
leaves, counted by asking the mask; shares are of the plain kernel without a mask, or causal if the
case is. On a CPU the kernels run on the emulator, and nothing is timed. The exit status is 1 if a
result was wrong.
"""

from __future__ import annotations

import argparse
import faulthandler
import json
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from itertools import accumulate, pairwise
from typing import Any

import numpy as np

from fmhagen import AttentionSpec, compile_kernel, masks
from fmhagen.bench.measure import ERROR_LIMIT
from fmhagen.bench.timing import Sample, calls_per_sample, interleave

# Tokens of the documents, as shares of the sequence.
DOCUMENTS = (
    0,
    700 / 16384,
    1900 / 16384,
    2100 / 16384,
    5200 / 16384,
    9000 / 16384,
    9100 / 16384,
    13000 / 16384,
    1,
)
HEAD_DIM = 128
Call = Callable[[], Any]
Mask = Callable[[Any, Any], Any]  # of query and key positions
Score = Callable[[Any, Any, Any, Any], Any]  # of scores, heads and both positions


@dataclass(frozen=True, kw_only=True)
class Case:
    """One kernel and what it means.

    Attributes:
        name: in the table.
        causal: no query sees a later key: it is compared with the causal plain kernel.
        fields: of its spec.
        mask: what a query sees, for float64 and FlexAttention; None: all keys.
        score: its score function, likewise.
        lengths: of packed sequences, whose Q, K and V follow one another; else there is one.
        arguments: of its calls.
        mapped: its block map is prepared before, as for many layers.
        fa3: keyword arguments of FlashAttention-3, which does not do the case if None.
    """

    name: str
    causal: bool
    fields: Mapping[str, Any]
    mask: Mask | None = None
    score: Score | None = None
    lengths: Sequence[int] | None = None
    arguments: Mapping[str, Any] = field(default_factory=dict)
    mapped: bool = False
    fa3: Mapping[str, Any] | None = None


def causal(m: Any, n: Any) -> Any:
    return n <= m


def both(*parts: Mask) -> Mask:
    def mask(m: Any, n: Any) -> Any:
        seen = parts[0](m, n)
        for part in parts[1:]:
            seen = seen & part(m, n)
        return seen

    return mask


def cases(torch: Any, options: argparse.Namespace) -> list[Case]:
    """Return all cases at the lengths that are asked for."""
    place, length, heads = options.place, options.seqlen, options.heads
    edges = [round(share * length) for share in DOCUMENTS]
    documents = [b - a for a, b in pairwise(edges)]
    ids = torch.repeat_interleave(
        torch.arange(len(documents), dtype=torch.int32), torch.tensor(documents)
    ).to(place)
    bounds = torch.tensor(edges, dtype=torch.int32, device=place)
    slopes = torch.tensor([2 ** (-8 * (h + 1) / heads) for h in range(heads)], device=place)
    window = min(1024, length // 4)
    drawn = np.exp(np.random.default_rng(7).uniform(np.log(16), np.log(length / 2), 64))
    unequal = [int(n) for n in drawn] if length > 1024 else [5, 1, 70, 128, 33]

    def same(m: Any, n: Any) -> Any:
        return ids[m] == ids[n]

    def near(m: Any, n: Any) -> Any:
        return (n <= m) & (m - n < window)

    def near_or_first(m: Any, n: Any) -> Any:
        return (n <= m) & ((m - n < window) | (n < 4))

    def alibi(s: Any, h: Any, m: Any, n: Any) -> Any:
        return s + slopes[h] * (n - m)

    def cap(s: Any, h: Any, m: Any, n: Any) -> Any:
        return 50 * torch.tanh(s / 50)

    given = {"alibi_slopes": slopes}
    near_first = f"((kv_idx < 4) | (q_idx - kv_idx < {window})) & (kv_idx <= q_idx)"
    found = [
        Case(
            name="window",
            causal=True,
            fields={"causal": True, "window_left": window - 1},
            mask=near,
            fa3={"causal": True, "window_size": (window - 1, 0)},
        ),
        Case(
            name="4 sinks and window",
            causal=True,
            fields={"mask_mod": near_first},
            mask=near_or_first,
        ),
    ]
    for mask, is_causal, end in ((None, False, ", full"), (causal, True, ", causal")):
        case, fields = partial(Case, causal=is_causal), {"causal": is_causal}
        of_documents = both(same, causal) if is_causal else same
        packed = {"lengths": documents, "fields": {**fields, "varlen": True}, "fa3": fields}
        found += [
            case(name="plain" + end, fields=fields, mask=mask, fa3=fields),
            case(
                name="ALiBi" + end,
                fields={**fields, "alibi": True},
                mask=mask,
                score=alibi,
                arguments=given,
            ),
            case(name="soft cap" + end, fields={**fields, "soft_cap": 50.0}, mask=mask, score=cap),
            case(
                name="documents" + end,
                fields={**fields, "mask_mod": masks.documents(bounds)},
                mask=of_documents,
            ),
            case(
                name="documents by id" + end,
                fields={**fields, "mask_mod": masks.document(ids)},
                mask=of_documents,
                mapped=True,
            ),
            case(name="packed documents" + end, **packed),
            case(name=f"{len(unequal)} packed sequences" + end, **{**packed, "lengths": unequal}),
        ]
    wanted = options.only.split(",") if options.only else [""]
    return [c for c in found if c.name.startswith("plain") or any(w in c.name for w in wanted)]


class Bench:
    """Tensors, calls and their checks."""

    def __init__(self, torch: Any, options: argparse.Namespace) -> None:
        self.torch, self.options = torch, options
        torch.manual_seed(options.seed)
        self._drawn: dict[int, tuple[Any, Any, Any]] = {}

    def tensors(self, tokens: int) -> tuple[Any, Any, Any]:
        """Return Q, K and V of N(0, 1) of so many tokens, (tokens, H, D)."""
        if tokens not in self._drawn:
            shape = tokens, self.options.heads, HEAD_DIM
            place, dtype = self.options.place, self.torch.bfloat16
            self._drawn[tokens] = tuple(
                self.torch.randn(shape, device=place).to(dtype) for _ in range(3)
            )
        return self._drawn[tokens]

    def tokens(self, case: Case) -> int:
        return self.options.seqlen if case.lengths is None else sum(case.lengths)

    def mask_of(self, case: Case) -> Mask | None:
        """The mask over all tokens of a case, packed ones included."""
        if case.lengths is None:
            return case.mask
        owner = self.torch.repeat_interleave(self.torch.tensor(case.lengths)).to(self.options.place)

        def same(m: Any, n: Any) -> Any:
            return owner[m] == owner[n]

        return both(same, causal) if case.causal else same

    def pairs(self, case: Case) -> int:
        """Count the pairs that the mask leaves."""
        if case.lengths is not None:
            return sum(n * (n + 1) // 2 if case.causal else n * n for n in case.lengths)
        length, mask = self.options.seqlen, case.mask
        if mask is None:
            return int(length * length)
        n = self.torch.arange(length, device=self.options.place)[None]
        count = 0
        for first in range(0, length, 512):
            m = self.torch.arange(first, min(first + 512, length), device=n.device)[:, None]
            count += int(self.torch.broadcast_to(mask(m, n), (m.numel(), length)).sum())
        return count

    def offsets(self, lengths: Sequence[int]) -> Any:
        ends = [0, *accumulate(lengths)]
        return self.torch.tensor(ends, dtype=self.torch.int32, device=self.options.place)

    def ours(self, case: Case) -> Call:
        """Compile a case's kernel, and return its call."""
        where: dict[str, Any] = (
            {"target": "sm90"} if self.options.place == "cpu" else {"device": "cuda"}
        )
        kernel = compile_kernel(AttentionSpec(**case.fields), **where)
        inputs, arguments = self.tensors(self.tokens(case)), dict(case.arguments)
        if case.lengths is None:
            inputs = tuple(x[None] for x in inputs)
        else:
            offsets, most = self.offsets(case.lengths), max(case.lengths)
            arguments.update(cu_seqlens_q=offsets, cu_seqlens_k=offsets, validate=False)
            arguments.update(max_seqlen_q=most, max_seqlen_k=most)
        if case.mapped:
            arguments["block_map"] = kernel.prepare(*inputs[:2])
        return lambda: kernel(*inputs, **arguments)

    def error(self, case: Case, o: Any) -> float:
        """Return the worst relative RMS of sampled rows of two heads against float64."""
        torch, mask = self.torch, self.mask_of(case)
        q, k, v = self.tensors(self.tokens(case))
        edges = [x for end in accumulate(case.lengths or ()) for x in (end - 1, end)]
        edges += [round(share * len(q)) - 1 for share in DOCUMENTS[1:]]
        sampled = {*range(0, len(q), max(1, len(q) // 48)), *(x for x in edges if 0 <= x < len(q))}
        rows = torch.tensor(sorted(sampled), device=q.device)
        m, n = rows[:, None], torch.arange(len(q), device=q.device)[None]
        o = o.reshape(len(q), -1, HEAD_DIM)
        worst = 0.0
        for h in {0, self.options.heads - 1}:
            scores = q[rows, h].double() @ k[:, h].double().T / HEAD_DIM**0.5
            if case.score is not None:
                scores = case.score(scores, h, m, n)
            if mask is not None:
                scores = scores.masked_fill(~mask(m, n), -torch.inf)
            want = torch.softmax(scores, -1) @ v[:, h].double()
            worst = max(worst, float((o[rows, h].double() - want).norm() / want.norm()))
        return worst

    def flex(self, case: Case) -> Call | None:
        """FlexAttention's compiled call, which has no packed sequences."""
        if case.lengths is not None:
            return None
        from torch.nn.attention.flex_attention import create_block_mask, flex_attention

        mask, score, length = case.mask, case.score, self.options.seqlen
        place = self.options.place
        block = None
        if mask is not None:
            block = create_block_mask(
                lambda b, h, m, n: mask(m, n), None, None, length, length, device=place
            )
        mod = None if score is None else lambda s, b, h, m, n: score(s, h, m, n)
        inputs = tuple(x[None].transpose(1, 2).contiguous() for x in self.tensors(length))
        compiled = self.torch.compile(flex_attention, dynamic=False)
        run = flex_attention if place == "cpu" else compiled
        return lambda: run(*inputs, score_mod=mod, block_mask=block)

    def fa3(self, case: Case) -> Call | None:
        if case.fa3 is None or self.options.place == "cpu":
            return None
        from flash_attn_interface import flash_attn_func, flash_attn_varlen_func

        inputs, given = self.tensors(self.tokens(case)), dict(case.fa3)
        if case.lengths is None:
            inputs = tuple(x[None] for x in inputs)
            return lambda: flash_attn_func(*inputs, **given)
        offsets, most = self.offsets(case.lengths), max(case.lengths)
        return lambda: flash_attn_varlen_func(*inputs, offsets, offsets, most, most, **given)

    def sample(self, call: Call, flops: float) -> Sample:
        """Time one window of calls, after an untimed one."""
        torch = self.torch
        calls = calls_per_sample(flops, self.options.window_ms, 1)
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        call()
        begin.record()
        for _ in range(calls):
            call()
        end.record()
        end.synchronize()
        return Sample(milliseconds=begin.elapsed_time(end) / calls)


def peers_of(bench: Bench, case: Case) -> dict[str, Call]:
    """Return the calls of those peers that do a case; each is called once."""
    found = {}
    for name, make in (("flex", bench.flex), ("fa3", bench.fa3)):
        if name not in bench.options.peers.split(","):
            continue
        try:
            call = make(case)
            if call is not None:
                call()
                found[name] = call
        except Exception as error:
            print(f"{case.name}: no {name}: {' '.join(str(error).split())[:160]}", flush=True)
    return found


def report(found: Sequence[Case], speeds: Mapping[str, Mapping[str, float]]) -> str:
    """Return a Markdown table."""
    lines = ["| case | TFLOP/s | of plain | x FlexAttention | x FA3 |", "|---|---:|---:|---:|---:|"]
    for case in found:
        own = speeds[case.name]
        plain = speeds["plain, causal" if case.causal else "plain, full"]["fmhagen"]
        cells = [f"{own['fmhagen']:.0f}", f"{own['fmhagen'] / plain:.3f}"]
        for name in ("flex", "fa3"):
            cells.append(f"{own['fmhagen'] / own[name]:.2f}" if name in own else "")
        lines.append(f"| {case.name} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--seqlen", type=int, default=16384)
    parser.add_argument("--heads", type=int, default=16)
    parser.add_argument("--only", default="", help="parts of names, with commas; plain stays")
    parser.add_argument("--peers", default="flex,fa3")
    parser.add_argument("--place", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--window-ms", type=float, default=20.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--watchdog", type=float, default=300.0, help="ends it after so many s")
    parser.add_argument("--json", default="", help="file for all that was found")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str]) -> int:
    """Check, then time; return the exit status."""
    import torch

    options = parse(arguments)
    if options.watchdog:
        faulthandler.dump_traceback_later(options.watchdog, exit=True)
    bench, found = Bench(torch, options), cases(torch, options)
    if options.place == "cuda":
        torch._dynamo.config.recompile_limit = 64
    for case in found:  # drawn here, as threads would draw twice
        bench.tensors(bench.tokens(case))
    with ThreadPoolExecutor(1 if options.place == "cpu" else None) as pool:
        ours = dict(zip((c.name for c in found), pool.map(bench.ours, found), strict=True))
    limit, wrong, calls = ERROR_LIMIT["bf16"], 0, {}
    for case in found:
        error = bench.error(case, ours[case.name]())
        verdict = "right" if error <= limit else "WRONG"
        wrong += verdict == "WRONG"
        print(f"{case.name}: RMS error {error:.2e}, {verdict}", flush=True)
        calls[case.name] = {"fmhagen": ours[case.name], **peers_of(bench, case)}
    if options.place == "cpu":
        return 1 if wrong else 0
    flops = {case.name: 4.0 * bench.pairs(case) * options.heads * HEAD_DIM for case in found}
    names = {f"{name} {who}": (name, who) for name, of in calls.items() for who in of}

    def sample(key: str) -> Sample:
        name, who = names[key]
        return bench.sample(calls[name][who], flops[name])

    samples = interleave(tuple(names), sample, rounds=options.rounds, seed=options.seed)
    speeds: dict[str, dict[str, float]] = {}
    for key, (name, who) in names.items():
        milliseconds = statistics.median(one.milliseconds for one in samples[key])
        speeds.setdefault(name, {})[who] = flops[name] / milliseconds / 1e9
    print(report(found, speeds))
    if options.json:
        with open(options.json, "w") as file:
            json.dump({"device": torch.cuda.get_device_name(), "tflops": speeds}, file, indent=1)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
