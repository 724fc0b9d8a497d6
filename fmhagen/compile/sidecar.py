"""The sidecar of a binary: all that a launcher in any language must know, as JSON."""

from __future__ import annotations

import dataclasses
import hashlib
from typing import Any

from fmhagen.compile.binary import Binary
from fmhagen.expr.text import to_text
from fmhagen.formula import mask_of, score_of
from fmhagen.plan.attention import Plan
from fmhagen.source import Source

SCHEMA = 1
SUFFIXES = {"cubin": ".cubin", "code_object": ".hsaco", "shared_library": ".so", "object": ".o"}


def binary_name(source: Source, binary: Binary) -> str:
    """Return the file name of a binary: the source's, with a suffix by kind."""
    return source.filename.rpartition(".")[0] + SUFFIXES[binary.kind]


def sidecar(plan: Plan, source: Source, binary: Binary) -> dict[str, Any]:
    """Return the sidecar of a compiled plan."""
    spec = plan.spec
    return {
        "schema": SCHEMA,
        "symbol": plan.symbol,
        "target": plan.target.name,
        "kind": binary.kind,
        "image": {
            "file": binary_name(source, binary),
            "bytes": len(binary.image),
            "sha256": hashlib.sha256(binary.image).hexdigest(),
        },
        "source": {
            "file": source.filename,
            "digest": source.digest,
            "sha256": hashlib.sha256(source.text.encode()).hexdigest(),
            "constructor": source.constructor,
        },
        "spec": spec.to_dict(defaults=True),
        "schedule": plan.schedule.to_dict(defaults=True),
        "conventions": {
            "scale": spec.scale_value,
            "scale_log2": "params.scale_log2 = scale * log2(e)",
            "score": _score(plan),
            "mask": _mask(plan),
            "lse": "natural logarithm, fp32, [B,H,Sq]; -inf where a row sees no key",
            "empty_row": "O = 0",
            "grouped_heads": "query head h reads key/value head h / (H / Hk)",
        },
        "launch": {
            "threads": plan.threads,
            "grid": {"formula": str(plan.grid), **dataclasses.asdict(plan.grid)},
            "dynamic_shared_bytes": source.dynamic_shared_bytes,
            "heads_in_l2_bytes": plan.heads_in_l2_bytes,
        },
        "params": {
            "bytes": plan.params_bytes,
            "passing": "one struct by value: kernelParams holds one pointer to the packed block",
            "fields": [dataclasses.asdict(field) for field in plan.params],
            "tensor_maps": [dataclasses.asdict(tensor_map) for tensor_map in plan.tensor_maps],
        },
        "resources": {**binary.resources.to_dict(), "clean": binary.resources.clean},
        "compiler": binary.compiler,
        "flags": list(binary.flags),
    }


def _mask(plan: Plan) -> str:
    mask = mask_of(plan.spec)
    if mask is None:
        return "none"
    if plan.spec == dataclasses.replace(plan.spec, mask_mod=None, window_left=None) and plan.causal:
        offset = "0" if plan.top_left else "Sk - Sq"
        return f"query m sees key n iff n <= m + causal_offset, causal_offset = {offset}"
    return f"query q_idx sees key kv_idx iff {to_text(mask)}"


def _score(plan: Plan) -> str:
    score = score_of(plan.spec)
    return "scale * q k" if score is None else f"of score = scale * q k: {to_text(score)}"
