"""The run view: a recorded or growing run over its steps, and one step in detail."""

import controls
import data
import state
import streamlit as st
import words
from views.picture import picture

from rlcorr import CorrectionConfig, plots, runs
from rlcorr.report import PREFIX
from rlcorr.runs import DamagedFile

LINES = {
    "reward": {"reward": "reward", "held-out accuracy": "accuracy"},
    "mismatch": {"mean |Δ|": f"{PREFIX}abs_log_ratio", "k3": f"{PREFIX}k3_kl"},
    "ess": {
        "as weighted": f"{PREFIX}rollout_is_eff_sample_size",
        "without bounds": f"{PREFIX}ratio_eff_sample_size",
    },
    "kept": {"kept": f"{PREFIX}kept_fraction"},
}


def show(chosen: state.Selection) -> None:
    for sentence in state.notices():
        st.warning(words.plain(sentence))
    _story(chosen)
    _curves(chosen)
    if not chosen.steps:
        st.info(words.NO_STEPS)
    elif chosen.step is not None:
        _step(chosen, chosen.step)
    _provenance(chosen)


def _story(chosen: state.Selection) -> None:
    st.markdown(f"{words.EXPLAIN}\n\n{words.COLOURS}")
    try:
        story = data.manifest(chosen.run).story
    except DamagedFile as error:
        count = len(data.metric_rows(chosen.run))
        st.error(words.plain(f"{error} Still readable: {count} rows of metrics, {len(chosen.steps)} step files."))
    else:
        if story:
            st.markdown(f"**This run.** {words.plain(story)}")


def _curves(chosen: state.Selection) -> None:
    rows = data.metric_rows(chosen.run)
    if not rows:
        return
    steps = [row["step"] for row in rows]
    places = st.columns(4)
    for place, (name, wanted) in zip(places, LINES.items(), strict=True):
        title, caption = words.CURVES[name]
        lines = {label: data.series(rows, key) for label, key in wanted.items()}
        drawn = {label: values for label, values in lines.items() if any(v is not None for v in values)}
        with place:
            figure = plots.curve(steps, drawn, log=name == "mismatch", share=name in ("ess", "kept"), at=chosen.step)
            picture(title, figure, key=f"curve_{name}", caption=caption)


def _step(chosen: state.Selection, step: int) -> None:
    record = controls.chosen_record(chosen, step)
    if record is None:
        return
    left, right = st.columns(2)
    with left:
        title = f"Step {step}: probability in the engine and in the trainer"
        picture(title, plots.probability_density(record.batch), key="density", caption=words.DENSITY)
    with right:
        title = f"Step {step}: the difference, magnified"
        picture(title, plots.ratio_density(record.batch), key="ratio_density", caption=words.RATIO_DENSITY)
    _responses(record)


def _responses(record: runs.StepRecord) -> None:
    st.markdown("**Responses**")
    st.caption(words.RESPONSES)
    result, _ = data.corrected(record.batch, CorrectionConfig())
    rows = [
        [_clipped(r.prompt), _clipped(r.text), words.number(r.reward), f"{r.mean_ratio:.4f}"]
        for r in data.furthest(record, result, 6)
    ]
    st.html(words.table(["Prompt", "Response", "Reward", "Mean ratio"], rows, words.RESPONSE_MEANINGS))


def _clipped(text: str, limit: int = 400) -> str:
    return text if len(text) <= limit else text[:limit] + " …"


def _provenance(chosen: state.Selection) -> None:
    try:
        manifest = data.manifest(chosen.run)
    except DamagedFile:
        return  # said above, with what can still be read
    with st.expander("Where this run comes from"):
        facts = ("task", "model", "engine", "trainer_dtype", "seed", "hardware", "git_commit")
        rows = [
            [name.replace("_", " "), str(getattr(manifest, name))] for name in facts if getattr(manifest, name) != ""
        ]
        rows += [[name, str(version)] for name, version in {**manifest.engine_settings, **manifest.versions}.items()]
        st.html(words.table(["", ""], rows))
    if manifest.status != "running":
        _check(chosen)


def _check(chosen: state.Selection) -> None:
    """Compare every file with its hash; cached until a file changes."""
    report = data.verified(chosen.run)
    readable = (
        f"Readable: {report.readable_steps} of {report.recorded_steps} steps, {report.metric_rows} rows of metrics."
    )
    if not report.problems:
        st.caption(f"Every file agrees with its hash. {readable}")
        return
    lines = "\n".join(f"- {words.plain(problem)}" for problem in report.problems)
    st.error(f"Damaged files:\n\n{lines}\n\n{readable}")


show(state.selection())
