"""The mismatch view's script: it opens on every run and says what the library says."""

import re
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import get_args

import pytest
import torch
from app_pages import committed, html_of, links, one_scan, open_app, root, said, shown, widget
from app_runs import add_step, make_record, make_run

from rlcorr import TokenBatch, preset
from rlcorr.analysis.regions import TOKEN_METHODS
from rlcorr.analysis.symptoms import Pattern, Symptom
from rlcorr.analysis.triage import triage
from rlcorr.foreign.import_run import write_run
from rlcorr.foreign.to_record import fill_missing
from rlcorr.records import runs
from rlcorr.records.step_files import StepRecord

__all__ = ["committed", "one_scan", "root"]  # fixtures

VIEW = "views/mismatch.py"


def run_titles() -> dict[str, str]:
    index = tomllib.loads((runs.ROOT / "index.toml").read_text(encoding="utf-8"))
    return {slug: entry["title"] for slug, entry in index.items() if "title" in entry}


def in_words(symptom: Symptom) -> str:
    """Return its sentence as the page writes it: the library's engine is the sampler there."""
    return symptom.sentence.replace("an engine", "a sampler").replace("engine", "sampler")


def test_the_headline_is_the_librarys(root: Path) -> None:
    run = make_run(root, "alpha", steps=1)
    (finding,) = triage(runs.read_step(run, 0).batch)
    at = open_app(VIEW)
    headings = [part.value.translate(str.maketrans({"\\": "", "\n": " ", "\u00a0": " "})) for part in at.markdown]
    heading, _, details = in_words(finding).partition(". ")
    assert f"# {heading}." in headings
    assert details in headings
    numbers = shown(at)
    assert numbers["k3"] == f"{finding.numbers['k3']:.4g}"
    assert numbers["Mean e^|Δ|"] == f"{finding.numbers['mult_error']:.4g}"
    assert numbers["Mean ratio"] == f"{finding.numbers['mean_ratio']:.4g}"


def test_a_gap_with_a_third_policy_is_shown_in_two_parts(root: Path) -> None:
    """The engine's part is 0 on every token and the age's is the whole gap; without the third log-prob, no parts."""
    run = make_run(root, "alpha", steps=1)
    assert "Where the gap comes from" not in said(open_app(VIEW))
    record = make_record(1)
    add_step(run, replace(record, batch=record.batch.replace(sampled_log_probs=record.batch.rollout_log_probs)))
    at = open_app(VIEW, run="alpha", step="1")
    assert "Where the gap comes from" in said(at)
    page = next(element.proto.body for element in at.get("html") if "whole gap" in element.proto.body)
    cells = {
        row[0]: row[1:] for row in (re.findall(r"<td>(?:<[^>]*>)?([^<]*)", line) for line in page.split("<tr>")[2:])
    }
    assert cells["whole gap"] == cells["age"]
    assert cells["sampler"][:4] == ["0", "0", "0", "1"]


@pytest.mark.usefixtures("committed")
def test_the_next_step_follows_the_verdict() -> None:
    """Old weights leave a gap to bound; a forgotten output head is a fault to mend."""
    from text.pages import PAGES
    from views.mismatch import NEXT

    assert set(NEXT) == set(get_args(Pattern))
    assert {view for _, view, _ in NEXT.values()} <= set(PAGES)
    for slug, advice, label in (
        ("stale_4", "Choose a threshold, and see what it costs", "Choose a threshold"),
        ("stale_head", "are the rows of the output head the same on both sides?", "See the tokens"),
    ):
        at = open_app(VIEW, run=slug)
        text = said(at).replace("\n", " ")
        verdict = in_words(triage(runs.read_step(runs.ROOT / slug, runs.list_steps(runs.ROOT / slug)[-1]).batch)[0])
        assert all(sentence in text for sentence in verdict.split(". ", 1))
        assert advice in text
        recorded = f"# {run_titles()[slug]}: k3 is "  # its record names the cause, which the log-probs do not show
        assert (recorded in text) == (slug == "stale_4")
        (link,) = [link for link in links(at) if link["label"] == label]
        assert f"run={slug}" in link["href"]


def test_a_gap_that_comes_with_the_age_of_the_weights_is_no_rounding(root: Path) -> None:
    """200 tokens of fresh weights differ by ±0.01, 200 older ones by ±0.05: k3 is about d²/2, 5e-5 and 1.25e-3.

    All together that is 6.5e-4, and 1 − 5e-5/6.5e-4 is 92 %. Its size alone looks like bfloat16.
    """
    run = make_run(root, "alpha", steps=1)
    sign = torch.tensor([1.0, -1.0]).repeat(20)
    d = torch.stack([0.01 * sign] * 5 + [0.05 * sign] * 5)
    ages = torch.tensor([[2]] * 5 + [[0]] * 5).expand(10, 40)
    batch = TokenBatch.from_log_probs(-3 + d, torch.full_like(d, -3.0), torch.ones_like(d))
    whole = make_record(3, sequences=10, width=40)
    tensors = {name: batch.tensors()[name] for name in ("response_mask", "rollout_log_probs", "old_log_probs")}
    aged = whole.batch.replace(**tensors, policy_versions=ages, advantages=torch.zeros_like(d))
    add_step(run, replace(whole, batch=aged))
    text = said(open_app(VIEW, run="alpha")).replace("−", "-").replace("\N{NO-BREAK SPACE}", " ")
    assert "# Looks like old weights: about 92 % of k3 comes with their age." in text
    assert "k3 is 5e-5 on the 200 tokens of weights 0 updates old, and 6.5e-4 on all." in text
    assert "By its size alone: Looks like precision" in text
    assert "older weights make 92 % of k3" in text
    assert "Sample with newer weights, or correct their age." in text
    assert "nothing beyond rounding" not in text


def test_the_methods_are_the_usual_ones_until_somebody_chooses(root: Path) -> None:
    make_run(root, "alpha", steps=1)
    at = open_app(VIEW)
    assert widget(at.multiselect, "methods").value == ["TIS", "IcePop", "KPop", "DPPO"]
    for chosen in (["k3", "roll_ratio_filter"], []):
        widget(at.multiselect, "methods").set_value(chosen).run()
        explained = html_of(at)
        assert (TOKEN_METHODS["k3"].explain() in explained) == bool(chosen)
        assert (preset("roll_ratio_filter").explain() in explained) == bool(chosen)
        assert "token_binary_kl" not in explained
    assert not at.exception


def test_the_age_of_the_weights_is_said_or_drawn(root: Path) -> None:
    """Of whole answers; at last of tokens, whose first ones have other weights and are another turn than the rest."""
    run = make_run(root, "alpha", steps=0, status="running")
    record = make_record(5)
    for step, (versions, expected) in enumerate(
        [
            ([4] * 24, "The tail"),
            ([3] * 24, "sampled by weights one update older"),
            ([1] * 24, "sampled by weights 3 updates older"),
            ([4] * 12 + [2] * 12, "By age of the weights"),
        ]
    ):
        aged = record.batch.replace(policy_versions=torch.tensor(versions) + step)
        add_step(run, replace(record, step=5 + step, batch=aged))
        text = said(open_app(VIEW))
        assert expected in text
        assert ("By age of the weights" in text) == (len(set(versions)) > 1)
        assert ("All answers of this step" in text) == (len(set(versions)) == 1 and versions[0] < 4)
    late = (record.batch.response_mask.cumsum(-1) > 3).int()
    add_step(run, replace(record, step=10, batch=record.batch.replace(policy_versions=2 + late, turn_ids=late)))
    text = said(open_app(VIEW))
    assert "By age of the weights" in text
    assert "By turn" in text


def test_what_a_dropped_file_lacks_is_left_out(root: Path) -> None:
    """Two log-probs and a mask, as `foreign.read_file` makes a run of them: no ids, no versions."""
    batch = make_record(0).batch
    pairs = TokenBatch(batch.response_mask, batch.rollout_log_probs, batch.old_log_probs)
    write_run(root / "alpha", [fill_missing(StepRecord(0, pairs, [""] * 24, [""] * 24))], "Dropped.")
    text = said(open_app(VIEW))
    assert "The step has no token ids" in text
    assert "Tokens that differ most" not in text
    assert "The tail" in text
    assert "All answers of this step" not in text
