"""One vocabulary, every word of it explained once."""

import pytest

from rlcorr.errors import UsageError
from rlcorr.measuring.metric_definitions import METRICS
from rlcorr.measuring.metrics import describe
from rlcorr.teaching.glossary import GLOSSARY, define, find, find_metrics


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
