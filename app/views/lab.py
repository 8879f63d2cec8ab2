"""The Lab: what a threshold does to training, which the reader's own browser runs in front of him."""

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict
from functools import cache
from typing import Any

import state
import streamlit as st
from components.lab import Choice, lab_part
from components.links import Link, links
from components.live_part import Slider
from components.picture import headed_data
from text import lab as say
from text.formatting import plain, table

from rlcorr.figures import lab as figures
from rlcorr.lab import Experiment
from rlcorr.lab.experiment import TWO_SIDED
from rlcorr.records import study


def show() -> None:
    settings = {name: state.get(name) for name in say.FIELDS}
    if settings["bound"] in TWO_SIDED:  # below 1 there is nothing between a threshold and its inverse
        settings["threshold"] = max(settings["threshold"], 1.0)
    lab_part(lab_data(settings, state.generation))
    st.markdown(f"## {say.SCENARIOS_TITLE}")
    for start in range(0, len(say.SCENARIOS), 3):
        for column, scenario in zip(st.columns(3), say.SCENARIOS[start : start + 3], strict=False):
            with column.container(border=True):
                st.markdown(f"**{scenario.title}**  \n{scenario.text}")
                links(Link(say.OPEN, {"view": "lab", **query(scenario)}), key=f"lab_{scenario.title}")
    st.markdown(f"## {say.CLAIMS_TITLE}\n{say.CLAIMS}")
    if outcome := carried():
        sentence, table_of_studies = outcome
        st.markdown(f"## {say.CARRIED_TITLE}\n{plain(sentence)}")
        st.html(table_of_studies)


def lab_data(settings: Mapping[str, Any], generation: Callable[[str], int] = lambda _: 0) -> dict[str, Any]:
    """Return what `lab_part.js` reads, for settings from the names of `say.FIELDS`."""
    sliders = [_slider(key, settings[key], generation(key)) for key in say.HANDLES]
    choices = [Choice(key, label, options) for key, (label, options) in say.CHOICES.items()]
    return {
        "settings": dict(settings),
        "sliders": [vars(slider) for slider in sliders],
        "choices": [vars(choice) for choice in choices],
        "pictures": pictures(),
        "words": say.WORDS,
        "ages": list(say.AGES),
        "rates": {name: list(rates) for name, rates in say.RATES.items()},
        "usual": say.USUAL_RATE,
    }


def _slider(key: str, value: float, generation: int) -> Slider:
    handle = say.HANDLES[key]
    values = sorted({*map(float, handle.values), float(value)})
    return Slider(key, handle.label, values, float(value), generation, help=handle.help)


@cache
def pictures() -> dict[str, dict[str, Any]]:
    """Return the pictures without points, with their titles and captions."""
    thresholds = say.HANDLES["threshold"].values
    drawn = {
        "curves": figures.curves(), "over_threshold": figures.over_threshold(thresholds),
        "gains": figures.gains(say.AGES, say.RATES["adamw"]), **{name: figures.part(name) for name in figures.PARTS},
    }  # fmt: skip
    return {key: headed_data(key, *_words(key, drawn[key]), "") for key in say.PICTURES}


def _words(key: str, figure: figures.Figure) -> tuple[str, figures.Figure, str]:
    title, caption = say.PICTURES[key]
    return title, figure, caption


def query(scenario: say.Scenario) -> dict[str, str]:
    """Return the address of a scenario: its settings, and the defaults of the others."""
    texts = asdict(Experiment()) | scenario.settings
    return {
        key: f"{value:g}" if isinstance(value, int | float) else value
        for key, value in texts.items()
        if key in say.FIELDS
    }


def carried() -> tuple[str, str] | None:
    """Return what the recorded studies say about the Lab's predictions: a sentence, and a table as HTML.

    None among the runs of somebody else.
    """
    path = study.FOLDER / "lab.json"
    if not path.is_file():
        return None
    read = json.loads(path.read_text(encoding="utf-8"))
    rows = []
    for name, one in read["scored"].items():
        rank = "{:.2f} [{:.2f}, {:.2f}]".format(*one["correlation"]) if "correlation" in one else ""
        predicted = len(read["predicted"][name]["pairs"])
        counts = [len(one["seen"]), predicted, one["hits"], one["misses"], one["not known"]]
        rows.append([study.find_study(name).title, *map(str, counts), rank])
    total = read["overall"]
    share, low, high = (f"{100 * value:.0f} %" for value in total["share"])
    counts = {"hits": total["hits"], "misses": total["misses"], "unknown": total["not known"]}
    sentence = say.CARRIED.format(pairs=sum(counts.values()), **counts, share=share, low=low, high=high)
    return sentence, table(say.CARRIED_HEAD, rows)
