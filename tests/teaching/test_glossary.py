"""One vocabulary, every word of it explained once; every preset has one place on the map."""

import pytest

from rlcorr import PRESETS, CorrectionConfig, RejectionRule
from rlcorr.errors import UsageError
from rlcorr.measuring.metric_definitions import METRICS
from rlcorr.measuring.metrics import describe
from rlcorr.teaching.glossary import GLOSSARY, define, find, find_metrics
from rlcorr.teaching.preset_map import LEVELS, RULES, preset_map, rule_kind, weight_level


def test_every_word_is_explained_once() -> None:
    for word, term in GLOSSARY.items():
        # What a metric means is said in the report alone.
        assert bool(term.meaning) != bool(term.metric), word
        assert define(word).strip().count("\n") == 0, word
        assert len(define(word)) > 15, word


def test_a_metric_is_described_by_the_report() -> None:
    assert define("k3") == describe("k3_kl")
    assert define("effective sample size") == describe("trained_eff_sample_size")


def test_an_unknown_word_names_the_nearest() -> None:
    with pytest.raises(UsageError, match="Did you mean 'staleness'"):
        define("stalenes")


def test_finding_looks_at_names_symbols_meanings_and_other_names() -> None:
    assert find("") == list(GLOSSARY)
    assert "masking" in find("ICEPOP")
    assert find("min(r, C)") == ["truncation"]
    assert "sampler" in find(" vllm ")
    assert find("no such word") == []


def test_finding_metrics() -> None:
    assert list(find_metrics("")) == list(METRICS)
    assert set(find_metrics("χ²")) == {"chi2_token", "chi2_seq"}
    assert find_metrics("chi2_seq") == {"chi2_seq": describe("chi2_seq")}


# --- the map ---


def test_every_preset_has_one_place() -> None:
    names = [name for place in preset_map().values() for name in place]
    assert sorted(names) == sorted(PRESETS)
    assert {level for level, _ in preset_map()} <= set(LEVELS)
    assert {rule for _, rule in preset_map()} <= set(RULES)


@pytest.mark.parametrize(
    ("name", "level", "rule"),
    [
        ("disabled", "none", "none"),
        ("decoupled_token_is", "token", "none"),
        ("decoupled_seq_is_rs", "sequence", "product or sum"),
        ("decoupled_geo_rs", "none", "geometric mean"),
        ("decoupled_k3_rs_token_tis", "token", "mean divergence"),
        ("ms_swift_sequence_truncate", "geometric", "none"),
        ("decoupled_token_kpop", "none", "single tokens"),
        ("verl_dppo_tv", "none", "the loss itself"),
        ("bypass_pg_is", "sequence", "none"),
        ("skyrl_outlier", "none", "several"),
    ],
)
def test_where_a_preset_stands(name: str, level: str, rule: str) -> None:
    assert name in preset_map()[level, rule]


def test_the_worst_token_has_its_own_column() -> None:
    """No preset has such a rule alone."""
    for name, bounds in {"seq_max_k1": (None, 100.0), "seq_min_k1": (1e-4, 1e9), "seq_max_k2": (None, 1.0)}.items():
        rule = RejectionRule.named(name, lower=bounds[0], upper=bounds[1])
        config = CorrectionConfig(rollout_is="geometric", rollout_rs=(rule,))
        assert (weight_level(config), rule_kind(config)) == ("geometric", "worst token")
