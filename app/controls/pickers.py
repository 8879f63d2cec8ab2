"""The pickers and thresholds, and the configuration they describe."""

import math
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TypeVar

import streamlit as st
from browser.live_slider import live_slider
from data import runs as data
from remembered import session as state
from remembered.session import Bound
from streamlit.delta_generator import DeltaGenerator
from words import words

from controls import choices as editing
from controls import drag
from rlcorr import PRESETS, CorrectionConfig, RejectionRule
from rlcorr.analysis.thresholds import Side, at_threshold
from rlcorr.errors import UsageError, unknown
from rlcorr.records import runs

RELOAD_EVERY = 15.0
"""Seconds: drawing a page for every step would slow the training that shares its cores with the browser."""


def pick(known: dict[str, Path]) -> state.Selection:
    """The run and step pickers, and the state of the run beside them."""
    left, right, beside = st.columns([2, 1, 2], vertical_alignment="bottom")
    options = [state.NEWEST, *known]
    _check_url("run", options, lambda got: f"{unknown('run', got, known)} Showing the newest.")
    wanted = left.selectbox("Run", options, key="run", bind="query-params", on_change=state.changed, args=("run",))
    slug = data.newest(known) if wanted == state.NEWEST else wanted
    steps = runs.list_steps(known[slug])
    step = _pick_step(right, known[slug], steps)
    chosen = state.Selection(slug, known[slug], tuple(steps), step)
    with beside:
        watch(world(known, chosen.run), chosen, time.monotonic())
    return chosen


def pick_second(known: dict[str, Path], first: state.Selection) -> state.Selection:
    """The run and step to compare with; by default the first other run that has a step."""
    left, right, _ = st.columns([2, 1, 2], vertical_alignment="bottom")
    others = [slug for slug, path in known.items() if slug != first.slug and data.has_steps(path)]
    options, another = [state.ANOTHER, *known], (others or [first.slug])[0]
    _check_url("run_b", options, lambda got: f"{unknown('run', got, known)} Showing {another}.")
    _restore("run_b")
    wanted = left.selectbox("Run B", options, key="run_b", bind="query-params", on_change=_run_b_changed)
    st.session_state["last_run_b"] = wanted
    slug = another if wanted == state.ANOTHER else wanted
    steps = runs.list_steps(known[slug])
    _restore("step_b")
    step = _pick_step(right, known[slug], steps, "Step B", "step_b")
    st.session_state["last_step_b"] = st.session_state["step_b"]
    return state.Selection(slug, known[slug], tuple(steps), step)


def _run_b_changed() -> None:
    state.changed("run_b")
    state.changed("step_b")


def _restore(key: str) -> None:
    """What a picker showed before its page was left."""
    if key not in st.session_state and key not in st.query_params and f"last_{key}" in st.session_state:
        st.session_state[key] = st.session_state[f"last_{key}"]


def _pick_step(
    place: DeltaGenerator, run: Path, steps: list[int], label: str = "Step", key: str = "step"
) -> int | None:
    options = [state.LATEST, *map(str, reversed(steps))]
    recorded = f"{len(steps)} recorded, {steps[0]} to {steps[-1]}" if steps else "none recorded yet"
    _check_url(key, options, lambda got: f"This run has no step {got!r} ({recorded}). Showing the latest.")
    chosen = place.selectbox(label, options, key=key, bind="query-params", on_change=state.changed, args=(key,))
    if chosen != state.LATEST:
        return int(chosen)
    number, problems = data.latest(run, steps)
    for problem in problems:
        found = f"Showing step {number}, the newest that can be read." if number is not None else "No step can be read."
        st.warning(words.plain(f"{problem} {found}"))
    return number


def _check_url(key: str, options: list[str], sentence) -> None:
    """Note a value in the URL that does not exist, before its widget quietly falls back to the default."""
    got = st.query_params.get(key)
    if got is not None and got not in options:
        state.notice(key, sentence(got))


def explained_record(chosen: state.Selection, explanation: str) -> runs.StepRecord | None:
    """The chosen step under a box that explains the view; None, with a sentence, where there is none to show."""
    with st.expander("What is this?", key="what_is_this"):
        st.write(explanation)
        st.caption(words.COLOURS)
    if chosen.step is None:
        st.info(words.NO_STEPS)
        return None
    return chosen_record(chosen, chosen.step)


def chosen_record(chosen: state.Selection, step: int) -> runs.StepRecord | None:
    """The chosen step; if it is damaged, a sentence on the page that says so, and None."""
    try:
        return data.step(chosen.run, step)
    except runs.DamagedFile as error:
        others = ", ".join(str(s) for s in chosen.steps if s != step) or "none"
        st.error(words.plain(f"{error} Other recorded steps: {others}."))
        return None


@st.fragment(run_every=2.0)
def watch(seen: tuple, chosen: state.Selection | None, drawn: float) -> None:
    """Reload the page when a run has appeared, and now and then while the shown one grows; otherwise cost a few stats
    every two seconds. `drawn` is when the page was drawn, on time.monotonic."""
    known = data.known()
    now = world(known, chosen.run if chosen else None)
    if now[0] != seen[0] or (now[1] != seen[1] and time.monotonic() - drawn > RELOAD_EVERY):
        st.rerun()
    if chosen is not None:
        life = data.life(chosen.run)
        shown = f"step {chosen.step}, {len(chosen.steps)} recorded" if chosen.step is not None else "no step to show"
        status = f"{words.STATUS.get(life.status, life.status)} · last change {words.ago(life.age)}"
        st.caption(words.plain(f"{chosen.slug} · {shown} · {status}"))


def world(known: dict[str, Path], run: Path | None) -> tuple:
    """What a page depends on: which runs exist and have steps, and the pulse of the one that is shown."""
    return tuple((slug, data.has_steps(path)) for slug, path in known.items()), run and data.pulse(run)


def announce_new_runs(known: dict[str, Path], shown: str) -> None:
    """Offer runs that appeared since the page was opened to somebody who is looking at another one."""
    seen = st.session_state.setdefault("seen_runs", set(known))
    seen.add(shown)
    for slug in [slug for slug, path in known.items() if slug not in seen and data.has_steps(path)]:
        text, button = st.columns([4, 1], vertical_alignment="center")
        text.info(words.plain(f"A new run has appeared: {slug}."))
        button.button("Show it", key=f"show_{slug}", on_click=show_run, args=(slug,))


def show_run(slug: str) -> None:
    """As if it had been picked, with its latest step."""
    st.session_state["run"] = slug
    st.session_state["step"] = state.LATEST


def show_step(step: int) -> None:
    """As if it had been picked."""
    st.session_state["step"] = str(step)
    state.changed("step")


# --- the configuration ---


def preset_name(
    label: str = "Preset", key: str = "preset", default: str = state.DEFAULT_PRESET, side: str = state.FIRST
) -> str:
    names = list(PRESETS)
    _check_url(key, names, lambda got: f"{unknown('preset', got, names)} Showing {default}.")
    _restore(key)
    index, changed = names.index(default), (key, side)
    name = st.selectbox(
        label, names, index=index, key=key, bind="query-params", on_change=_preset_changed, args=changed
    )
    st.session_state[f"last_{key}"] = name
    return name


def _preset_changed(key: str, side: str) -> None:
    state.changed(key)
    state.reset_fields(side)


def settings(config: CorrectionConfig, side: str = state.FIRST) -> CorrectionConfig:
    """Controls for what a configuration weighs and rejects, and for its bounds but the first, which `live_bound` moves;
    the configuration as all of them say."""
    choices = _of_side(editing.choices_of(config), side)
    state.sync_choices(choices, side)
    bounded = st.container(key=f"{side}bounds")
    with st.expander("Change what is weighed and rejected", expanded=_is_edited(choices), key=f"{side}choices"):
        editing.controls(choices)
    try:
        config = editing.edited(config, choices)
    except UsageError as error:
        st.error(words.plain(f"{error} Showing the preset itself."))
        state.show_bounds([], side)
        return config
    bounds = _of_side(bounds_of(config), side)
    state.sync_bounds(bounds, choices, side)
    state.show_bounds(bounds, side)
    with bounded:
        for b in bounds[1:]:
            _native(b)
    return _bounded(config, side)


F = TypeVar("F", Bound, state.Choice)


def _of_side(fields: list[F], side: str) -> list[F]:
    """Under this side's keys, and labels that tell the sides apart."""
    if side == state.FIRST:
        return fields
    return [replace(field, key=side + field.key, label=f"B: {field.label}") for field in fields]


def _is_edited(choices: list[state.Choice]) -> bool:
    return any(state.choice(c) != c.value for c in choices)


def live_bound(
    config: CorrectionConfig,
    side: str = state.FIRST,
    answer: Callable[[CorrectionConfig], drag.Moved] | None = None,
) -> CorrectionConfig:
    """The slider of the first bound, and the way back to the preset; the configuration as it is now. It belongs into a
    fragment with what moves while it is dragged, and nothing else: that is what makes it quick. With an `answer` that
    fragment runs only when the bound has been let go; until then, what moves is asked for."""
    with st.container(
        key=f"{side}live_bound"
    ):  # a button that appears would move what follows, and it would be drawn anew
        for b in state.shown_bounds(side)[:1]:
            low, high = b.low - b.offset, b.high - b.offset
            key, others = f"live_{b.key}", _bounded(config, side)
            address = None if answer is None else drag.offer(key, partial(_answer_at, answer, others, b))
            live_slider(
                b.label,
                state.bound(b),
                low=low,
                high=high,
                offset=b.offset,
                token=_token(b),
                key=key,
                address=address,
                on_change=partial(_put, b),
            )
        label = "Reset to the preset's numbers" if side == state.FIRST else "Reset B to the preset's numbers"
        if state.is_changed(side) and st.button(label, key=f"{side}reset", on_click=state.reset_fields, args=(side,)):
            st.rerun()  # the other controls are outside this fragment
    return _bounded(config, side)


def _put(b: Bound, value: float, done: bool) -> None:
    state.put(b, value, done=done)


def _answer_at(
    answer: Callable[[CorrectionConfig], drag.Moved], config: CorrectionConfig, b: Bound, value: float
) -> drag.Moved:
    if not b.low <= value <= b.high:
        raise UsageError(f"{value:g} is out of range; allowed: {b.low:g} to {b.high:g}.")
    return answer(with_bounds(config, {b.key: value}))


def _bounded(config: CorrectionConfig, side: str) -> CorrectionConfig:
    return with_bounds(config, {b.key.removeprefix(side): state.bound(b) for b in state.shown_bounds(side)})


def _native(b: Bound) -> None:
    # A fresh key per token: that is how the box takes a new value from the preset or the URL.
    key, start = f"{b.key}_{_token(b)}", state.bound(b)
    step = max(abs(b.value - b.offset) / 10, 1e-6)
    state.picked(b, st.number_input(b.label, b.low, b.high, start, step, "%g", key=key, help=b.help))


def _token(b: Bound) -> int:
    return state.token(state.side_of(b.key) + state.BOUNDS)


def set_threshold(config: CorrectionConfig, threshold: float, rule: int | None) -> None:
    """Put the bounds of the weights, or of a rule, where a budget puts them, within what their controls reach."""
    moved = {b.key: b.value for b in bounds_of(at_threshold(config, threshold, rule))}
    for b in state.shown_bounds():
        if b.key in moved and part_of(config, b)[0] == rule:
            state.put(b, min(max(moved[b.key], b.low), b.high), done=False)
    state.fields_are_set()


def part_of(config: CorrectionConfig, b: Bound) -> tuple[int | None, Side]:
    """Which rule a bound belongs to, None for the weights, and its side."""
    name, _, side = b.key.rpartition("_")
    names = [rule.name for rule in config.rollout_rs]
    return (None if name == "is" else names.index(name)), ("lower" if side == "lower" else "upper")


def bounds_of(config: CorrectionConfig) -> list[Bound]:
    """The bounds that this configuration has; the one to drag comes first."""
    found = []
    if config.rollout_is is not None:
        reach = {"token": 99.0, "sequence": 9999.0, "geometric": 1.0}[config.rollout_is]
        if math.isfinite(config.rollout_is_threshold):
            found.append(_upper("is", "Upper bound of the weight", config.rollout_is_threshold, reach))
        if config.rollout_is_threshold_lower is not None:
            found.append(_lower("is", "Lower bound of the weight", config.rollout_is_threshold_lower, reach))
    for rule in config.rollout_rs:
        found += _bounds_of_rule(rule)
    return found


def _bounds_of_rule(rule: RejectionRule) -> list[Bound]:
    sides = {"upper": rule.upper if math.isfinite(rule.upper) else None, "lower": rule.lower}
    return [_bound_of_rule(rule, side, value) for side, value in sides.items() if value is not None]


def _bound_of_rule(rule: RejectionRule, side: str, value: float) -> Bound:
    label = f"{rule.name}: {side} bound"
    if rule.divergence == "k1":
        reach = {None: 99.0, "max": 99.0, "min": 99999.0, "sum": 9999.0, "mean": 1.0}[rule.reduce]
        return (_upper if side == "upper" else _lower)(rule.name, label, value, max(reach, abs(value), 1 / value))
    if rule.divergence == "mult_error":
        return _upper(rule.name, label, value, 99.0)
    high = {"binary_kl": 20.0, "signed_kl": 20.0, "prob_diff": 1.0}.get(rule.divergence, 100.0)
    key, help = f"{rule.name}_{side}", f"{'Largest' if side == 'upper' else 'Smallest'} value kept."
    if side == "lower":
        return Bound(key, label, value, -high, -1e-7, 0.0, help)
    return Bound(key, label, value, 1e-7, high, 0.0, help)


def _upper(key: str, label: str, value: float, reach: float) -> Bound:
    return Bound(f"{key}_upper", label, value, 1 + reach * 1e-6, 1 + reach, 1.0, "Largest ratio allowed.")


def _lower(key: str, label: str, value: float, reach: float) -> Bound:
    return Bound(f"{key}_lower", label, value, 1 / (1 + reach), 1.0, 1.0, "Smallest ratio allowed.")


def with_bounds(config: CorrectionConfig, values: dict[str, float]) -> CorrectionConfig:
    """The configuration with these numbers in place of its own."""
    rules = tuple(
        replace(
            rule,
            upper=values.get(f"{rule.name}_upper", rule.upper),
            lower=values.get(f"{rule.name}_lower", rule.lower),
        )
        for rule in config.rollout_rs
    )
    return replace(
        config,
        rollout_rs=rules,
        rollout_is_threshold=values.get("is_upper", config.rollout_is_threshold),
        rollout_is_threshold_lower=values.get("is_lower", config.rollout_is_threshold_lower),
    )
