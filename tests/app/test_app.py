"""The app's script: every view and preset, names that do not exist, damaged runs. The browser has its own tests."""

import json
import math
import os
import re
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from app_pages import chosen, committed, html_of, line_and_state, one_scan, open_app, root, said, shown, widget
from app_runs import add_step, make_record, make_run

from rlcorr import PRESETS, CorrectionConfig, RejectionRule, evaluate, preset
from rlcorr.records import runs
from rlcorr.systems.export import SYSTEMS

__all__ = ["committed", "one_scan", "root"]  # fixtures

BENCH, RUN = "bench", "training"


def test_a_rule_that_needs_advantages_says_so_where_a_step_has_none(root: Path) -> None:
    run = make_run(root, "alpha", steps=0, status="running")
    record = make_record(0)
    add_step(run, replace(record, batch=record.batch.replace(advantages=None)))
    text = said(open_app(BENCH, preset="trl_opsm"))
    assert "seq_mean_k1_negative asks for the sign of the advantage; the batch has no advantages." in text


def test_choices_come_from_the_url(root: Path) -> None:
    """Sequence weights masked beyond 3, and a rule that the preset does not have, with its own bound."""
    run = make_run(root, "alpha", steps=1)
    batch = runs.read_step(run, 0).batch
    query = {"level": "sequence", "mode": "mask", "rules": "token_k3", "is_upper": "3", "token_k3_upper": "0.02"}
    numbers = shown(open_app(BENCH, preset="decoupled_token_is", **query))
    rule = RejectionRule.named("token_k3", upper=0.02)
    config = CorrectionConfig(rollout_is="sequence", rollout_is_threshold=3, rollout_is_mode="mask", rollout_rs=(rule,))
    report = evaluate(batch, config)[1]
    assert numbers["Kept tokens"] == f"{100 * report['rollout_corr/kept_fraction']:.2f} %"
    assert numbers["Mean weight"] == f"{report['rollout_corr/trained_is_mean']:.4g}"


def test_choices_that_contradict_each_other_are_named(root: Path) -> None:
    """PPO's clip in bypass mode has the ratio in the loss already."""
    make_run(root, "alpha", steps=1)
    at = open_app(BENCH, preset="bypass_ppo_clip", level="token")
    assert "Showing the preset itself." in said(at)
    assert preset("bypass_ppo_clip").explain() in said(at)


def test_a_budget_sets_the_bound(root: Path) -> None:
    """The tightest cap that leaves 90 % of the ratios as they are: a quantile of them."""
    run = make_run(root, "alpha", steps=1)
    batch = runs.read_step(run, 0).batch
    assert batch.old_log_probs is not None
    mask = batch.response_mask.numpy()
    ratios = np.sort(np.exp((batch.old_log_probs.numpy().astype(float) - batch.rollout_log_probs.numpy())[mask]))
    at = open_app(BENCH, preset="decoupled_token_is")
    widget(at.number_input, "budget_share").set_value(90.0).run()
    at.button(key="budget_set").click().run()
    assert not at.exception
    bound = chosen(at, "is_upper")
    assert bound == pytest.approx(ratios[math.ceil(0.9 * len(ratios)) - 1], rel=5e-3)
    assert f"a weight above {bound:g}" in said(at)


@pytest.mark.parametrize("name", ["decoupled_geo_rs_token_tis", "decoupled_k3_rs_token_tis", "decoupled_token_icepop"])
@pytest.mark.usefixtures("committed")
def test_a_budget_is_kept_by_the_whole_correction(name: str) -> None:
    """On this run the rule of the first preset rejects 93 % of the tokens, whatever the cap of the weights is."""
    at = open_app(BENCH, run="kv_fp8_e5m2", preset=name)
    at.button(key="budget_set").click().run()
    assert not at.exception
    kept = shown(at)["Kept tokens"]
    assert float(kept.removesuffix(" %")) >= 95
    assert f"The whole correction then keeps {kept} of the tokens" in said(at)
    at.button(key="budget_set").click().run()  # what is reached is offered again
    assert shown(at)["Kept tokens"] == kept


@pytest.mark.usefixtures("committed")
def test_a_budget_that_is_not_reached_says_what_each_part_reaches() -> None:
    """Two rules reject: whichever is opened, the other keeps what it kept."""
    rules = {"rules": "seq_mean_k1,token_k1", "token_k1_upper": "1.001"}
    at = open_app(BENCH, run="kv_fp8_e5m2", preset="decoupled_geo_rs", **rules)
    reached = "No threshold reaches 95.00 %. Mean ratio (seq_mean_k1): no threshold leaves 0.95 of the tokens inside"
    assert reached in said(at)
    assert "Ratio (token_k1): no threshold leaves 0.95 of the tokens inside" in said(at)
    assert not [button for button in at.button if button.key == "budget_set"]


def test_a_preset_with_score_centering_says_that_the_page_shows_the_rest(root: Path) -> None:
    make_run(root, "alpha", steps=1)
    at = open_app(BENCH, preset="nemo_rl_score_centering")
    assert "This page shows the correction without it." in said(at)


def test_each_turn_is_corrected_on_its_own(root: Path) -> None:
    """Two turns per answer, its first and its second half; their weights are counted with numpy."""
    record = make_record(0)
    batch = record.batch
    half = (batch.response_mask.cumsum(-1) * 2 > batch.response_mask.sum(-1, keepdim=True)).int()
    run = make_run(root, "alpha", steps=0, status="running")
    add_step(run, replace(record, batch=batch.replace(turn_ids=half)))
    assert batch.old_log_probs is not None
    mask, turn = batch.response_mask.numpy(), half.numpy()
    d = np.where(mask, batch.old_log_probs.numpy().astype(float) - batch.rollout_log_probs.numpy(), 0)
    weights = np.zeros(d.shape)
    for number in (0, 1):
        of_turn = mask & (turn == number)
        weights += of_turn * np.minimum(np.exp((d * of_turn).sum(-1, keepdims=True)), 2.0)
    at = open_app(BENCH, preset="decoupled_seq_is", turns="true")
    assert shown(at)["Mean weight"] == f"{weights[mask].mean():.4g}"
    at.session_state["use_it"] = True
    assert "No system corrects each turn on its own" in said(at.run())
    assert not at.code
    whole = np.minimum(np.exp(d.sum(-1)), 2.0).repeat(mask.sum(-1)).mean()
    widget(at.toggle, "turns").set_value(False).run()
    assert shown(at)["Mean weight"] == f"{whole:.4g}"
    assert at.code
    add_step(run, make_record(1))
    without = open_app(BENCH, preset="decoupled_seq_is", turns="true", step="1")
    assert "This batch has no turns (turn_ids), so an answer can only be corrected as a whole." in said(without)


def test_the_configuration_can_be_copied(root: Path) -> None:
    make_run(root, "alpha", steps=1)
    at = open_app(BENCH, preset="decoupled_seq_is", is_upper="3")
    assert not at.code
    at.session_state["use_it"] = True
    text, line = [block.value for block in at.run().code]
    assert "rollout_is_threshold: 3.0" in text
    assert text.endswith("# made with rlcorr")  # the address of this machine would open nothing elsewhere
    assert line.startswith("# verl 0.9.1\nalgorithm.rollout_correction.rollout_is=sequence ")
    assert "Not verl's own defaults: `rollout_is: sequence`; `rollout_is_threshold: 3.0`." in said(at)
    widget(at.selectbox, "system").set_value("Python").run()
    assert "rollout_is_threshold=3.0" in at.code[0].value


def test_the_configuration_goes_to_the_system_that_was_chosen_last(root: Path) -> None:
    make_run(root, "alpha", steps=1)
    at = open_app(BENCH, preset="decoupled_seq_is", system="TRL")
    at.session_state["use_it"] = True
    assert "vllm_importance_sampling_clip_max=2.0" in at.run().code[0].value
    widget(at.selectbox, "system").set_value("OpenRLHF").run()
    assert at.code[0].value.startswith("# cannot be expressed: OpenRLHF's weights are token ratios; nearest:")
    assert sorted(widget(at.selectbox, "system").options) == sorted(SYSTEMS)
    for opened in (False, True):
        at.session_state["use_it"] = opened
        at.run()
    assert widget(at.selectbox, "system").options[0] == "OpenRLHF"


@pytest.mark.usefixtures("committed")
def test_a_fresh_clone_opens_on_its_example(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runs, "LOCAL", tmp_path / "local")
    assert "| smol_kv_fp8_e5m2 · 4 steps recorded" in line_and_state(open_app(BENCH))
    sketched = line_and_state(open_app("views/gradient.py"))  # the other one has no sketch of the gradient
    assert "step 7 · Cap each token's weight at 2 | smol_sketch_stale_6 · " in sketched


def test_the_page_of_a_run_says_what_it_has_and_stays(root: Path) -> None:
    """Without a run; with one; with a newer one, which is opened by name; and when that has gone quiet."""
    text = said(open_app())
    assert f"No runs yet in {root}" in text
    assert "python -m rlcorr train" in text
    make_run(root, "alpha", steps=2, story="Eleven sums.")
    run = make_run(root / "local", "mine", steps=0, status="running")
    at = open_app()
    assert line_and_state(at) == "alpha · step 1 | 2 steps recorded · complete"
    assert "Eleven sums." in said(at)
    assert "Every file agrees with its hash. Readable: 2 of 2 steps, 2 rows of metrics." in said(at)
    assert "no step yet" in said(open_app(BENCH, run="mine"))
    add_step(run, make_record(0))
    assert line_and_state(open_app()) == "alpha · step 1 | 2 steps recorded · complete"  # none takes over by itself
    assert line_and_state(open_app(run="mine")).startswith("mine · step 0 | 1 step recorded · running")
    long_ago = time.time() - 300
    for path in (run / "manifest.json", run / "metrics.jsonl", run / "steps"):
        os.utime(path, (long_ago, long_ago))
    assert "stopped without finishing" in said(open_app(run="mine"))


@pytest.mark.parametrize("view", [RUN, BENCH])
def test_a_damaged_run_is_named_and_the_rest_of_it_is_shown(root: Path, view: str) -> None:
    run = make_run(root, "alpha", steps=3)
    broken = runs.step_path(run, 2)
    broken.write_bytes(broken.read_bytes()[:200])
    text = said(open_app(view))
    assert f"{broken}: cannot be read" in text
    assert "Showing step 1, the newest that can be read." in text
    assert view == RUN or "Other recorded steps: 0, 1." in said(open_app(view, step="2"))
    metrics = run / "metrics.jsonl"
    metrics.write_bytes(metrics.read_bytes()[:-40] + b'\n{"step": "x", "reward": []}\n{"step": 7, "reward": NaN}\n')
    assert view != RUN or "1 line(s) cut off or damaged" in said(open_app(view))
    for content in ("{", "[]", '{"story": "no slug"}', '{"slug": "alpha", "schema_version": 9}', ""):
        (run / "manifest.json").write_text(content)
        at = open_app(view)
        assert "status unknown" in said(at), content
        if view == RUN:
            assert f"{run / 'manifest.json'}:" in said(at), content
            assert re.search(r"Still readable: \d rows of metrics, 3 step files\.", said(at)), content
        else:
            assert shown(at), content


def test_a_wrong_hash_is_named_and_a_folder_that_is_no_run(root: Path) -> None:
    run = make_run(root, "alpha", steps=2)
    content = json.loads((run / "manifest.json").read_text())
    content["files"]["steps/step_000000.parquet"] = "0" * 64
    del content["crc32"]
    (run / "manifest.json").write_text(json.dumps(content))
    text = said(open_app())
    assert f"{runs.step_path(run, 0)}: sha256 is" in text
    assert "Readable: 1 of 2 steps" in text
    (root / "beta" / "steps").mkdir(parents=True)
    (root / "beta" / "steps" / "step_000003.parquet").write_bytes(b"")
    text = said(open_app(run="beta"))
    assert "manifest.json: not a readable manifest" in text
    assert "No step can be read." in text


def test_text_of_a_run_is_never_markup(root: Path) -> None:
    texts = ["<script>alert(1)</script> [link](javascript:alert(1)) $x^2$ `code`"]
    make_run(root, "alpha", steps=1, texts=texts, story="**loud** :red[x] $x$ [y](javascript:z)")
    at = open_app()
    page = html_of(at)
    assert "<script>" not in page
    assert r"\*\*loud\*\* \:red\[x\] \$x\$ \[y\]\(javascript\:z\)" in "".join(m.value for m in at.markdown)


def test_every_bound_has_slider_values_over_its_whole_range_which_a_configuration_accepts(root: Path) -> None:
    """The preset's own number is one of them; lower bounds, too, open to the right."""
    from data.bounds import bounds_of, slider_values_of, with_bounds

    for name, entry in PRESETS.items():
        for bound in bounds_of(entry.config):
            values = slider_values_of(bound, bound.value)
            assert bound.value in values, (name, bound)
            assert list(values) == sorted(values, reverse=bound.id.side == "lower"), (name, bound)
            assert len(values) > 500, (name, bound)
            for value in (bound.low, *values[:: len(values) - 1], bound.high):
                assert bound.low <= value <= bound.high, (name, bound)
                with_bounds(entry.config, {bound.id: value})
    (bound,) = bounds_of(PRESETS["decoupled_token_is"].config)
    assert {1.2345678, 2.0} <= set(slider_values_of(bound, 1.2345678))  # a number from the address
