"""The page for a person's own data: what to set, what each correction would do, thresholds by budget, and text."""

import io
import json
import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import yaml
from app_pages import chosen, links, one_scan, open_app, pictures, root, said, widget
from app_runs import PROJECT, make_run
from streamlit.testing.v1 import AppTest

from rlcorr.analysis.advice import advise
from rlcorr.analysis.verdicts import look
from rlcorr.records import runs

__all__ = ["one_scan", "root"]  # fixtures

VIEW = "views/yours.py"
ROWS, WIDTH = 40, 50


def differences(seed: int) -> np.ndarray:
    return 0.05 * np.random.default_rng(seed).standard_normal((ROWS, WIDTH))


def step_file(seed: int, times: float = 1) -> bytes:
    d = (times * differences(seed)).astype(np.float32)
    rollout = np.full_like(d, -1.0)
    file = io.BytesIO()
    np.savez(file, response_mask=np.ones_like(d, bool), old_log_probs=rollout + d, rollout_log_probs=rollout)
    return file.getvalue()


def dropped(*files: tuple[str, bytes], **query: str) -> AppTest:
    at = open_app(VIEW, **query)
    uploaded = [(name, content, "application/octet-stream") for name, content in files]
    widget(at.file_uploader, "dropped").set_value(uploaded).run()
    assert not at.exception
    return at


@dataclass(frozen=True)
class Bar:
    """A row of the picture: its key, its words, and the shares that it keeps, clips and zeroes."""

    key: str
    words: str
    kept: float
    clipped: float
    zeroed: float


def bars(at: AppTest) -> dict[str, Bar]:
    """Return each correction that is drawn, by its name."""
    (figure,) = [json.loads(p["figure"]) for p in pictures(at) if p["title"] == "What each would do to your tokens"]
    shares = zip(*(trace["x"] for trace in figure["data"]), strict=True)
    rows = {}
    for note, one in zip(figure["layout"]["annotations"], shares, strict=True):
        name, words = note["text"].split("<br>")
        rows[re.sub("<.*?>", "", name)] = Bar(note["y"], words, *one)
    return rows


def copied(at: AppTest) -> str:
    """Return the configuration to copy."""
    (text,) = [block.value for block in at.code if "made with rlcorr" in block.value]
    return text


def verdict(at: AppTest) -> str:
    (heading,) = [part.value for part in at.markdown if part.value.startswith("# ")]
    return heading.replace("\\", "").replace("\u00a0", " ").removeprefix("# ")


def with_details(at: AppTest) -> AppTest:
    at.session_state["details"] = True
    return at.run()


def test_the_sentence_says_what_to_set_as_the_command_line_does(root: Path) -> None:
    """The differences have a deviation of 0.05: no ratio is outside 0.5 to 2, and k3 is about 0.05²/2 = 0.00125."""
    make_run(root, "alpha", steps=1)
    at = dropped(("step_1.npz", step_file(1)))
    assert verdict(at).startswith("Your gap looks like ordinary rounding to bfloat16 (k3 0.0013). verl's default, no ")
    assert "is fine. As a safeguard, cap each token's weight at 2 (touches none of your tokens)." in verdict(at)
    from data import uploads

    batch = runs.read_step(Path(uploads.folder().name) / chosen(at, "run"), 1).batch
    assert verdict(at) == advise([look(1, batch)], batch, "verl").sentence
    content = yaml.safe_load(copied(at))
    assert content["algorithm"]["rollout_correction"]["rollout_is"] is None  # leaving it off is what to do
    assert content["actor_rollout_ref"] == {"rollout": {"calculate_log_probs": True}}
    assert copied(at).endswith("\n# made with rlcorr")
    next(button for button in at.button if button.label == "Or: Cap each token's weight at 2").click().run()
    assert yaml.safe_load(copied(at))["algorithm"]["rollout_correction"]["rollout_is_threshold"] == 2.0
    assert "On step 1 this touches none of your tokens." in said(at)
    assert any(button.label == "Or: No correction" for button in at.button)
    widget(at.selectbox, "system").set_value("TRL").run()  # another system begins with what is advised for it
    assert "TRL's default" in verdict(at)


def test_the_bars_have_the_shares_of_the_batch(root: Path) -> None:
    """Count on the same ratios: a geometric mean within 0.1 %. A click takes a row."""
    make_run(root, "alpha", steps=1)
    at = dropped(("step_1.npz", step_file(1)))
    d = differences(1).astype(np.float32).astype(float)
    rows = bars(at)
    assert (rows["Cap each token's weight at 2"].kept, rows["No correction"].kept) == (1.0, 1.0)
    assert "verl's default" in rows["No correction"].words
    row = rows["Reject answers with a mean ratio outside 0.999 to 1.001"]
    inside = (np.abs(d.mean(1)) <= np.log(1.001)).mean()
    assert (row.kept, row.clipped, row.zeroed) == pytest.approx((inside, 0, 1 - inside))
    assert f"zeroes {100 * (1 - inside):.0f} % of your tokens" in row.words


def test_thresholds_are_chosen_on_the_first_steps_and_a_missed_promise_is_red_and_not_offered(root: Path) -> None:
    """The band keeps 95 % of the tokens of the first two steps; the last step has twice their differences."""
    make_run(root, "alpha", steps=1)
    at = dropped(*((f"step_{step}.npz", step_file(step)) for step in (1, 2)), ("step_3.npz", step_file(3, times=2)))
    widget(at.select_slider, "keep").set_value("95 %").run()
    assert at.query_params["keep"] == "95 %"
    (name, band), *_ = [(name, row) for name, row in bars(at).items() if row.key == "decoupled_token_icepop@0.95"]
    low, high = map(float, re.findall(r"[\d.]+", name))
    before = np.abs(np.concatenate([differences(1), differences(2)])).ravel()
    assert high == pytest.approx(np.exp(np.quantile(before, 0.95)), rel=2e-3)
    assert low == pytest.approx(1 / high, rel=1e-4)
    kept = (np.abs(2 * differences(3)) <= np.log(high)).mean()
    assert band.kept == pytest.approx(kept, abs=5e-4)
    assert f"missed by {95 - 100 * kept:.0f} points on step 3: it does not carry over" in band.words
    assert "color:" in band.words
    assert not any("chosen to keep 95 %" in option for option in widget(at.selectbox, "take").options)
    at.session_state["take"] = band.key
    assert "rollout_is_threshold: 2.0" in copied(at.run())


def test_a_threshold_that_keeps_its_promise_can_be_taken(root: Path) -> None:
    make_run(root, "alpha", steps=1)
    at = dropped(("step_1.npz", step_file(1)), keep="95 %")
    (name,) = [name for name, row in bars(at).items() if row.key == "decoupled_geo_rs@0.95"]
    widget(at.selectbox, "take").set_value("decoupled_geo_rs@0.95").run()
    correction = yaml.safe_load(copied(at))["algorithm"]["rollout_correction"]
    assert correction["rollout_rs"] == "seq_mean_k1"
    low, high = map(float, re.findall(r"[\d.]+", name))
    assert correction["rollout_rs_threshold"] == f"{low:.5g}_{high:.5g}"
    widget(at.selectbox, "system").set_value("slime").run()
    assert "slime cannot express it" in bars(at)[name].words
    assert name not in " ".join(widget(at.selectbox, "take").options)
    assert "# slime" in copied(at)


def test_a_fault_shows_no_bars_and_no_text(root: Path) -> None:
    """Check a shift by one token, two equal sides, and a fault of an earlier step than the one that is shown."""
    make_run(root, "alpha", steps=1)
    whole = np.load(io.BytesIO(step_file(1)))
    rollout = -np.random.default_rng(5).random(whole["rollout_log_probs"].shape).astype(np.float32)
    old = rollout + differences(1).astype(np.float32)
    for name, (p, q), sentence in (
        ("shifted.npz", (old.clip(max=0), np.roll(rollout, 1, axis=1)), "Looks like a shift by one"),
        ("same.npz", (rollout, rollout), "Identical: both sides have the same 2,000 log-probs"),
    ):
        file = io.BytesIO()
        np.savez(file, response_mask=whole["response_mask"], old_log_probs=p, rollout_log_probs=q)
        at = dropped((name, file.getvalue()))
        assert verdict(at).startswith(sentence)
        assert ("In bypass mode this is so by design" in said(at)) == (name == "same.npz")
        assert not pictures(at)
        assert not [block for block in at.code if "made with rlcorr" in block.value]
        at = dropped((f"step_1_{name}", file.getvalue()), ("step_2.npz", step_file(2)))
        assert verdict(at).startswith(f"Step 1: {sentence}")
        assert not pictures(at)


def test_one_token_that_decides_is_named_with_a_link(root: Path) -> None:
    """One log-prob of −39.9 among 2,000: the log-ratio is clamped to 20, and k3 there is e^20 − 21 = 4.9e8."""
    make_run(root, "alpha", steps=1)
    whole = dict(np.load(io.BytesIO(step_file(1))))
    whole["rollout_log_probs"][31, 7] = -39.9
    file = io.BytesIO()
    np.savez(file, **whole)
    at = with_details(dropped(("pairs.npz", file.getvalue())))
    assert verdict(at).startswith("One token makes 100 % of k3. Without it: your gap looks like ordinary rounding")
    assert "answer 31, token 7 (log-probs −39.9 in the sampler" in said(at)
    (link,) = [link for link in links(at) if link["label"] == "See token 7 of answer 31"]
    assert link["to"] == {"view": "tokens", "token": "31.7"}
    d = np.delete(differences(1).ravel(), 31 * WIDTH + 7)
    sizes = next(e.proto.body for e in at.get("html") if "without the token" in e.proto.body)
    mean, without, _, median = re.findall(
        r"<td>([^<]*)</td>", next(row for row in sizes.split("<tr>") if ">k3<" in row)
    )
    assert float(mean) == pytest.approx(np.expm1(20) / 2000, rel=1e-3)
    assert float(without) == pytest.approx((np.exp(d) - 1 - d).mean(), rel=1e-3)
    assert float(median) == pytest.approx(np.median(np.exp(d) - 1 - d), rel=1e-2)
    assert bars(at)  # one token is no reason to choose nothing


def test_every_step_has_a_part_in_the_diagnosis(root: Path) -> None:
    make_run(root, "alpha", steps=1)
    whole = np.load(io.BytesIO(step_file(3)))
    rollout = whole["rollout_log_probs"].copy()
    rollout[:, 7] = -9999
    marked = io.BytesIO()
    np.savez(marked, **{**whole, "rollout_log_probs": rollout})
    at = dropped(("step_1.npz", step_file(1)), ("step_2.npz", step_file(2)), ("step_3.npz", marked.getvalue()))
    assert verdict(at).startswith("Step 3: Looks like padding: the sampler's log-prob is exactly −9999 on 40 tokens")
    text = said(with_details(at))
    assert "- padding (1 step): Looks like padding: the sampler's log-prob is exactly −9999" in text
    assert "- precision (2 steps, the worst is step" in text


def test_the_details_wait_until_they_are_opened(root: Path) -> None:
    """The numbers are of the selected step, the last one."""
    make_run(root, "alpha", steps=1)
    at = dropped(*((f"step_{step}.npz", step_file(step)) for step in (1, 2)))
    assert "Is this gap normal?" in [picture["title"] for picture in pictures(at)]
    assert "Step 2" not in said(at)
    assert "**Step 2**" in said(with_details(at))
    within = next(e.proto.body for e in at.get("html") if "±5 %" in e.proto.body)
    share = float((np.abs(np.expm1(differences(2).astype(np.float32))) <= 0.05).mean())
    assert f"<td>{100 * share:.2f} %</td>" in within


def test_before_a_drop_three_systems_say_how_to_record(root: Path) -> None:
    """The lines are those of rlcorr/foreign/README.md."""
    make_run(root, "alpha", steps=1)
    at = open_app(VIEW)
    readme = (PROJECT / "rlcorr/foreign/README.md").read_text(encoding="utf-8")
    assert [tab.label for tab in at.tabs] == [f"{system}: how to record" for system in ("verl", "TRL", "SkyRL")]
    for tab, names in zip(
        at.tabs,
        (("RLCORR_VERL=record", "RLCORR_RUN=my_run"), ('RecordPairs("my_run")',), ('record_pairs("my_run")',)),
        strict=True,
    ):
        lines = tab.code[0].value
        assert len(lines.splitlines()) == 3
        assert all(name in lines and name in readme for name in names)
    texts = b'{"input": "a", "output": "b", "gts": "c", "score": 1, "step": 1}'
    widget(at.file_uploader, "dropped").set_value([("1.jsonl", texts, "application/jsonl")]).run()
    refusal = at.error[0].value.replace("\\", "")
    assert (
        "verl's rollout_data_dir, which has only texts and scores. To get log-probs, train a few steps with" in refusal
    )
    assert at.tabs
