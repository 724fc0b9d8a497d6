"""Calls over a key/value cache, cut on the device for few rows or by tiles of many.

Nothing is read of lengths or tables: grid and workspace follow from shapes, so that a captured
graph serves any lengths.
"""

from __future__ import annotations

from dataclasses import replace

from fmhagen.errors import TensorError
from fmhagen.runtime.arguments import Arguments, Given
from fmhagen.runtime.cache_checks import cache_axes, check_cache, check_scales, scale_values
from fmhagen.runtime.cache_prepared import prepare_cut
from fmhagen.runtime.cache_values import cache_operand
from fmhagen.runtime.calls import Calls, Views, packing_of
from fmhagen.runtime.checks import Problem
from fmhagen.runtime.launcher import Launcher, refuse_unfit
from fmhagen.runtime.prepared import Prepared
from fmhagen.runtime.tensors import TensorView
from fmhagen.runtime.torch_memory import Allocate
from fmhagen.spec import AttentionSpec, CacheScale


class CacheCalls(Calls):
    """The calls of one kernel over a cache; see `calls.Calls`."""

    def _arguments_of(self, spec: AttentionSpec) -> Arguments:
        return Arguments(spec, reads_cache=True)

    def _problem(self, views: Views, given: Given) -> Problem:
        table = given.tensors.get("block_table")
        packing = packing_of(self._spec, given)
        kind = self._pick(views[0]).plan.target.float8_kind
        return check_cache(self._spec, *views, table, packing, kind)

    def _fit(self, launcher: Launcher, views: Views) -> Views:
        q, k, v = views
        if launcher.plan.split is None:
            return launcher.fit(q), launcher.fit_cache(k), launcher.fit_cache(v)
        axes = cache_axes(self._spec)
        for tensor in (k, v):
            reason = launcher.backend.unfit(launcher.plan, cache_operand("k", tensor, axes))
            refuse_unfit(tensor, reason)
        return launcher.fit(q), k, v

    def _values(self, problem: Problem, given: Given, views: Views) -> Given:
        plan = self._pick(views[0]).plan
        if given.numbers.get("num_splits", 0) > 1 and not (plan.split or plan.schedule.split_keys):
            limit = "many query rows are computed without a cut of the keys"
            splits = given.numbers["num_splits"]
            raise TensorError("num_splits", splits, limit, "leave num_splits out")
        table = given.tensors.get("block_table")
        stride = 0 if table is None or table.shape[0] < 2 else table.strides[0]
        more = {"capacity": problem.seqlen_k, "table_stride": stride}
        named = {name: tensor.tensor for name, tensor in given.tensors.items()}
        scales = check_scales(self._spec, named, views[1], problem.batch)
        if plan.split is None:
            for scale in scales.values():
                _check_span(self._spec, scale)
        return replace(given, values=given.values | more | scale_values(scales))

    def _prepare(
        self,
        launcher: Launcher,
        problem: Problem,
        inputs: Views,
        o: TensorView,
        allocate: tuple[Allocate, Allocate],
        stream: int,
        given: Given,
    ) -> Prepared:
        if launcher.plan.split is None:
            return super()._prepare(launcher, problem, inputs, o, allocate, stream, given)
        fields = self._arguments.fields
        return prepare_cut(launcher, problem, (*inputs, o), allocate, stream, given, fields)


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
