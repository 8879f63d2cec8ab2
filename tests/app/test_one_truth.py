"""No two sentences rank two things differently, each cited number is on the linked page, and no name lies.

All sentences of Gradient and Compare about training, for all committed runs and all kinds of corrections, against the
pages of the studies to which they link.
"""

import functools
import itertools
import re
from collections.abc import Iterator
from typing import Any

import pytest
from app_pages import committed, one_scan

from rlcorr import PRESETS
from rlcorr.presets import RANKED
from rlcorr.records import runs, study
from rlcorr.records.study_ends import NOTHING, StudyEnds, study_ends

__all__ = ["committed", "one_scan"]  # fixtures
pytestmark = pytest.mark.usefixtures("committed")

SKETCHED = ("stale_4", "kv_fp8_e5m2", "control_fp32")
"""Old weights and a coarse cache, for both of which there are studies, and a run without a mismatch."""


def sentences() -> Iterator[tuple[StudyEnds, tuple[str, str], str]]:
    """Yield the study, the two kinds and the sentence of everything that Gradient and Compare say about training."""
    from data import studies
    from text import study_ends as say

    for run in map(runs.ROOT.joinpath, runs.list_runs()):
        for a, b in itertools.product(say.KINDS, repeat=2):
            if ended := studies.ends(run, a, b):
                yield ended, (a, b), say.of_two(ended, a, b)
        if widest := studies.widest_ends(run):
            for kind in widest.by_kind.keys() & say.KINDS.keys():
                if say.is_contradicted(widest, kind):
                    yield widest, (kind, NOTHING), say.condemned(widest, kind)


@functools.cache
def study_page(name: str) -> tuple[str, dict[str, str]]:
    """Return everything that the page of a study shows, and arm → its relation to no correction there."""
    from data import studies
    from data.names import arm_title
    from views import study

    result, entry = studies.table(name), studies.all_studies()[name]

    def title(arm: str) -> str:
        return arm_title(entry, arm)

    heading, lines = study.said(entry, result)
    figures: list[Any] = [shown.figure for shown in study.endpoint(entry, result).values()]
    dots = [text for figure in figures for text in figure.data[0].text]
    compared = result.against_nothing
    if entry.endpoint is not None and entry.endpoint.steps == 0:
        compared = [pair for pair in result.planned if pair.against in ("none", "disabled")]
    relations = {pair.arm: relation(pair.difference.value, pair.difference.tells) for pair in compared}
    said = "\n".join((heading, *lines)).replace("\\", "").replace("\u00a0", " ")
    assert all(title(arm) in said for arm, how in relations.items() if how != "undecided")
    return "\n".join((said, study.outcome_table(entry, result.outcomes), *dots)), relations


def relation(difference: float, is_significant: bool) -> str:
    return ("better" if difference > 0 else "worse") if is_significant else "undecided"


def test_each_cited_number_stands_on_the_page_of_the_study() -> None:
    cited = 0
    for ended, kinds, sentence in sentences():
        page, _ = study_page(ended.name)
        for number in re.findall(r"\b\d\.\d\d\b", sentence):
            assert number in page, (ended.name, kinds, sentence)
            cited += 1
    assert cited > 1000


def test_no_two_sentences_rank_two_kinds_differently() -> None:
    """Against no correction, the page of the study decides; A and B have one order, whichever is A."""
    orders: dict[tuple[str, str, str], str] = {}
    for ended, (a, b), sentence in sentences():
        page_says = study_page(ended.name)[1]
        for kind, letter in ((a, "A"), (b, "B")):
            arms = {page_says[arm] for arm in ended.by_kind.get(kind, {}) if arm in page_says}
            if f"Only {letter} differs" in sentence or "Both differ" in sentence:
                assert arms != {"undecided"}, (ended.name, kind, sentence)
            elif "Neither differs" in sentence:
                assert arms <= {"undecided"}, (ended.name, kind, sentence)
        if NOTHING in (a, b) and a != b:
            kind = b if a == NOTHING else a
            arms = {page_says[arm] for arm in ended.by_kind[kind] if arm in page_says}
            if "difference is significant" in sentence and "1 of" not in sentence:
                side = "better" if "above no correction" in sentence else "worse"
                assert arms == {side}, (ended.name, kind, sentence)
            elif "cannot tell them apart" in sentence:
                assert arms <= {"undecided"}, (ended.name, kind, sentence)
        if match := re.search(r"of A|A ended significantly (above|below)", sentence):
            order = (match[1] or re.findall(r"significantly (above|below)", sentence)[0]) == "above"
            first, second = sorted((a, b))
            place = "first" if order == (a == first) else "second"
            assert orders.setdefault((ended.name, first, second), place) == place
    assert len(orders) >= 5


def test_advice_never_begins_with_what_training_contradicts() -> None:
    """On Gradient, at every batch size: the sentence, the bars, and what is said above them."""
    from data import sketches, studies
    from text import study_ends as say
    from views import gradient

    seen = 0
    for name in SKETCHED:
        run = runs.ROOT / name
        measured = sketches.sketched(run, runs.list_sketches(run)[-1])
        for size in sketches.BATCH_SIZES:
            shown = gradient.Shown(run, measured, "decoupled_token_is", size)
            ranked = gradient.ranked(shown)
            first = next(iter(ranked.progress))
            assert first not in ranked.against
            assert [*ranked.progress].index(first) == 0
            widest = studies.widest_ends(run)
            for preset in ranked.against:
                kind = gradient.kind_of_preset(preset)
                assert widest is not None
                assert say.is_contradicted(widest, kind)
                seen += 1
    assert seen


@pytest.mark.parametrize("name", ["decoupled_token_is", "decoupled_geo_rs_token_tis", "trl_opsm", "skyrl_product_mask"])
def test_a_changed_preset_has_not_its_own_name(name: str) -> None:
    """A dragged threshold, and a choice: no number of the name is another than that of the configuration."""
    from data.configuration import FIRST, bounds, configuration
    from data.names import shown_title

    usual = shown_title({"preset": name}, FIRST)
    for b in bounds({"preset": name}, FIRST):
        values = {"preset": name, b.key: b.within(1.37 * b.value)}
        named, config = shown_title(values, FIRST), configuration(values, FIRST)
        assert named != usual, b.key
        numbers = {f"{end:g}" for end in (config.rollout_is_threshold, config.rollout_is_threshold_lower or 0)}
        numbers |= {f"{end:g}" for rule in config.rollout_rs for end in (rule.upper, rule.lower or 0)}
        assert {number.rstrip(".") for number in re.findall(r"[\d.]+\d", named)} <= numbers
    assert shown_title({"preset": name, "denominator": "kept"}, FIRST) != usual


def test_every_preset_and_study_has_been_walked() -> None:
    """The studies to which a page can link are finished, and each has a kind that a preset has."""
    from data.studies import STUDIES
    from views.gradient import kind_of_preset

    kinds = {kind_of_preset(name) for name in RANKED}
    for name in {name for names in STUDIES.values() for name in names}:
        assert name in study.finished_studies()
        assert study_ends(name).by_kind.keys() & kinds
    assert {*RANKED} <= {*PRESETS}
