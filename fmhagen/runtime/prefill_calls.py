"""Calls over a key/value cache with many query rows: one launch, of the main loop without a cut.

As in `cache_calls` nothing is read of lengths or tables, so that a captured graph serves any.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from fmhagen.errors import TensorError
from fmhagen.plan.attention import Plan
from fmhagen.runtime.arguments import Arguments, Extras, Given
from fmhagen.runtime.cache_calls import CacheCalls
from fmhagen.runtime.cache_checks import check_cache, check_scales, scale_values
from fmhagen.runtime.calls import Calls, Views, packing_of
from fmhagen.runtime.checks import Problem
from fmhagen.runtime.launcher import Launcher
from fmhagen.runtime.tensors import TensorView, view
from fmhagen.spec import AttentionSpec, CacheScale


class PrefillCalls(Calls):
    """The calls of one kernel that reads a cache by tiles of many rows; see `calls.Calls`."""

    def __init__(self, spec: AttentionSpec, pick: Callable[[TensorView], Launcher]) -> None:
        """Start with no layout; `pick` gives the launcher for q's memory."""
        super().__init__(spec, pick)
        self._cut = CacheCalls(spec, pick)

    def _arguments_of(self, spec: AttentionSpec) -> Arguments:
        return Arguments(spec, reads_cache=True)

    def _problem(self, views: Views, given: Given) -> Problem:
        table = given.tensors.get("block_table")
        packing = packing_of(self._spec, given)
        kind = self._pick(views[0]).plan.target.float8_kind
        found = check_cache(self._spec, *views, table, packing, kind)
        # NOTE: a tensor map has one page where there is none, and entries could name it.
        return found.sizes if found.pages else replace(found.sizes, seqlen_k=0)

    def _fit(self, launcher: Launcher, views: Views) -> Views:
        q, k, v = views
        return launcher.fit(q), launcher.fit_cache(k), launcher.fit_cache(v)

    def _values(self, problem: Problem, given: Given, views: Views) -> Given:
        splits = given.numbers.get("num_splits", 0)
        if splits > 1 and not self._pick(views[0]).plan.schedule.split_keys:
            limit = "many query rows are computed without a cut of the keys"
            raise TensorError("num_splits", splits, limit, "leave num_splits out")
        table = given.tensors.get("block_table")
        stride = 0 if table is None or table.shape[0] < 2 else table.strides[0]
        more = {"capacity": problem.seqlen_k, "table_stride": stride}
        named = {name: tensor.tensor for name, tensor in given.tensors.items()}
        scales = check_scales(self._spec, named, views[1], problem.batch)
        for scale in scales.values():
            _check_span(self._spec, scale)
        return replace(given, values=given.values | more | scale_values(scales))

    def _first(
        self,
        q: Any,
        k: Any,
        v: Any,
        scale: float | None,
        out: Any,
        return_lse: bool,
        extras: Extras | None,
    ) -> Any:
        if self._pick(view("q", q)).plan.split is not None:  # on a chip that has one main loop
            return self._cut(q, k, v, scale, out, return_lse, extras)
        return super()._first(q, k, v, scale, out, return_lse, extras)


def _check_span(spec: AttentionSpec, scale: TensorView) -> None:
    """Refuse factors of tokens that offsets of 32 bits do not reach; see `cache_checks`."""
    if spec.kv_scale != CacheScale.TOKEN or 0 in scale.shape:
        return
    pairs = zip(scale.shape, scale.strides, strict=True)
    (pages, page), _, (rows, row) = pairs
    outer = (pages - 1) * page if spec.page_size is not None else 0
    if 4 * (outer + (rows - 1) * row + 1) >= 2**32:
        limit = "factors of one head that span 4 GiB or more are not reached"
        raise TensorError(scale.name, scale.strides, limit, "put the heads before the pages")


def kind_of_calls(plan: Plan) -> type[CacheCalls] | type[PrefillCalls]:
    """Return what the calls of a kernel over a cache are, by its main loop."""
    return PrefillCalls if plan.split is None else CacheCalls
