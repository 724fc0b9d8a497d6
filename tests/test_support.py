"""The support matrix says what the validator does."""

from __future__ import annotations

import dataclasses

import pytest

from fmhagen.committed.support import FEATURES, reason_against, support_matrix
from fmhagen.errors import UnsupportedSpecError
from fmhagen.spec import AttentionSpec
from fmhagen.targets import TARGETS, Target
from fmhagen.validate import RULES, check_support, is_supported


def test_every_cell_is_the_validators_answer() -> None:
    lines = support_matrix().splitlines()
    assert len(lines) == 2 + len(FEATURES)
    for feature, line in zip(FEATURES, lines[2:], strict=True):
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        expected = ["yes" if is_supported(feature.spec, target) else "no" for target in TARGETS]
        assert cells[0] == feature.name
        assert cells[1 : 1 + len(TARGETS)] == expected
        assert bool(cells[-1]) == ("no" in expected)


def test_every_rule_has_a_feature_that_it_can_refuse() -> None:
    fields = {rule.field for rule in RULES}
    for target in TARGETS:
        refused = {f.name for f in FEATURES if reason_against(f, target) is not None}
        assert refused < {f.name for f in FEATURES}
    plain = FEATURES[0].spec.to_dict(defaults=True)
    varied = {
        name
        for feature in FEATURES
        for name, value in feature.spec.to_dict(defaults=True).items()
        if value != plain[name]
    }
    assert fields <= varied


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)
@pytest.mark.parametrize(
    ("field", "what"), [("max_logit", "largest scores are"), ("varlen", "packed sequences are")]
)
def test_what_is_missing_over_a_cache_alone_is_said_so(
    target: Target, field: str, what: str
) -> None:
    lacking = dataclasses.replace(target, cache_features=target.cache_features - {field})
    plain = AttentionSpec.from_dict({"causal": True, field: True})
    check_support(plain, lacking)
    message = f"{what} not generated yet over a key/value cache on {target.name}"
    with pytest.raises(UnsupportedSpecError, match=message):
        check_support(dataclasses.replace(plain, page_size=16, kv_cache=True), lacking)
