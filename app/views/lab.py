"""The Lab: what a threshold does to training, which the reader's own browser runs in front of him."""

import json
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import state
import streamlit as st
from components.lab import lab_part
from components.links import Link, links
from components.live_part import Slider
from components.picture import Picture, headed_data
from data.options import LAB
from text.formatting import plain, table

from rlcorr.figures import lab as figures
from rlcorr.figures.lab import UPDATE
from rlcorr.lab import Experiment
from rlcorr.lab.experiment import TWO_SIDED
from rlcorr.records import study

AGES = (0, 2, 4, 8, 16, 32, 64)
RATES = {"adamw": (0.005, 0.01, 0.02, 0.05, 0.1), "sgd": (0.5, 1.0, 2.0, 5.0, 10.0)}
"""Columns of the map. The two optimizers need different learning rates."""
USUAL_RATE = {"adamw": 0.05, "sgd": 5.0}
HANDLES: dict[str, tuple[str, tuple[float, ...], str]] = {
    "lag": ("Age of the sampler, in updates", (0, 1, 2, 4, 8, 12, 16, 24, 32, 48, 64), ""),
    "learning_rate": ("Learning rate", tuple(sorted({0.002, 0.2, 0.03, 20.0, *RATES["adamw"], *RATES["sgd"]})), ""),
    "threshold": (
        "Threshold",
        (0.25, 0.3, 0.4, 0.5, 0.6, 0.8, 1, 1.2, 1.5, 2, 2.5, 3, 4, 5, 6, 8, 10, 12, 16, 20, 24, 32, 48, 64),
        "Above it a weight is cut, or becomes 0.",
    ),
    "noise": ("Noise of the sampler", (0, 0.25, 0.5, 1, 1.5, 2, 3, 4), "Standard deviation on its logits."),
    "length": ("Tokens of an answer", (1, 2, 3, 4, 5, 6, 7, 8), "All of them must be right."),
    "top_p": ("top-p of the sampler", (0.5, 0.7, 0.8, 0.9, 0.95, 0.99, 1), "1: nothing is cut."),
    "penalty_coef": ("Coefficient of the KL penalty", (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1, 3), ""),
    "steps": ("Updates", (40, 80, 120, 200, 400), ""),
}
"""Setting → label, values and meaning of its slider."""
CHOICES = {
    "ratio": ("Weights", {
        "none": "none", "token": "each token's ratio", "sequence": "the product of an answer",
        "geometric": "its geometric mean",
    }),
    "bound": ("Outside the threshold", {
        "cap": "cut to it", "mask": "0", "band": "0, also below its inverse",
        "reject": "rejected, and inside all count alike",
    }),
    "penalty": ("KL penalty to the start", {name: name for name in ("none", "k1", "k2", "k3", "k3+")}),
    "optimizer": ("Optimizer", {"adamw": "AdamW", "sgd": "SGD"}),
}  # fmt: skip
"""Setting → label and options of its list."""
_ENDS = "Without a correction the reward ends at {before}, with {named} at {after}"
WORDS: dict[str, Any] = {
    "update": UPDATE,
    "training": "Training in your browser …",
    "playing": "Update {step} of {steps}.",
    "uncorrected": "Without a correction the reward ends at {before}.",
    "better": f"{_ENDS}: better by {{gain}} over {{seeds}} seeds.",
    "worse": f"{_ENDS}: worse by {{gain}} over {{seeds}} seeds.",
    "same": f"{_ENDS}: {{seeds}} seeds show no difference, {{gain}}.",
    "corrections": {
        f"{ratio} {bound}": Experiment(ratio=ratio, bound=bound, threshold=999).named().replace("999", "{threshold}")
        for ratio in ("token", "sequence", "geometric")
        for bound in ("cap", "mask", "band", "reject")
    },
    "toy": "A toy, trained in your browser: fewer than 2,000 weights answer 36 prompts.",
    "play": "▶ Play", "pause": "❚❚ Pause", "step": "One update", "reset": "To the start", "another": "Other seeds",
    "noWorkers": "This browser starts no Web Workers, so the page trains between two redraws, and more slowly.",
    "failed": "A Web Worker of this page has failed. The others go on; without any, the page trains by itself.",
}  # fmt: skip
"""Key of `lab_part.js` → what the page says."""
PICTURES = {
    "curves": (
        "Reward while it learns",
        "The mean of 8 seeds, and the interval that holds it in 95 of 100 such experiments.",
    ),
    "over_threshold": ("Where it ends, over the threshold", "The last ten updates. Drag the line."),
    "ess": ("Effective sample size", "How many of the answers count, as a share."),
    "clipped": ("Weights that the threshold changes", "As a share of the tokens."),
    "mean_ratio": ("Mean ratio", "Mean of r. Its expectation is 1, unless the sampler never draws some tokens."),
    "k3": ("Gap between sampler and policy", "Mean of r − 1 − log r."),
    "kl": (
        "Distance from the start",
        "The exact KL divergence of an answer. Purple: what the chosen penalty shows of it, per token.",
    ),
    "gains": (
        "What this correction adds, over age and learning rate",
        "The reward at the end minus that without a correction; 4 seeds. A click goes there.",
    ),
}
"""Key of a picture → title and caption."""
SCENARIOS: dict[str, tuple[str, dict[str, Any]]] = {
    "Healthy": ("The sampler has the policy's weights. Nothing needs a correction.", {"lag": 0}),
    "Stale": (
        "Weights 16 updates old break training at this learning rate. A cap heals it.", {"lag": 16, "threshold": 1.0}
    ),
    "Stale and slow": (
        "The same age at a tenth of the learning rate breaks nothing.", {"lag": 16, "learning_rate": 0.005}
    ),
    "Cut by top-p": (
        "The sampler never draws rare tokens, and reports log-probs as if it did. Every ratio is 1, so no threshold "
        "sees it.",
        {"lag": 0, "top_p": 0.8},
    ),
    "Long answers": (
        "Eight ratios multiplied: few answers carry the gradient. With the geometric mean every answer counts alike.",
        {"length": 8, "ratio": "sequence"},
    ),
    "k2 as a penalty": (
        "Its gradient is that of KL(π‖start): the policy stays near.",
        {"lag": 0, "penalty": "k2", "penalty_coef": 1.0},
    ),
    "k3 as a penalty": (
        "Its gradient is that of KL(start‖π): at the same coefficient the policy stays nearer, and learns less.",
        {"lag": 0, "penalty": "k3", "penalty_coef": 1.0},
    ),
    "k1 with a stale sampler": (
        "With fresh weights its gradient is 0 on average. With old ones it is not: the policy runs away, and the "
        "reward with it.",
        {"lag": 16, "penalty": "k1", "penalty_coef": 0.3},
    ),
}  # fmt: skip
"""Title of a setting worth seeing → what happens there, and how it differs from the usual one."""
CARRIED_TITLE = "What carries over, and what does not"
CLAIMS = "No digit of an answer depends on another. The best threshold here is not the best threshold of your run."
CARRIED = (
    "Before they were compared, the Lab predicted the order of the corrections in the recorded studies, by fixed rules "
    "(runs/study/lab.md). Of the {pairs} differences that it predicted, the studies confirm {hits}, contradict "
    "{misses}, and cannot tell {unknown}. Of those that they decide, {share} are hits (95 % of resamples of the "
    "studies: {low} to {high})."
)
CARRIED_HEAD = ["study", "corrections", "predicted", "hits", "misses", "not known", "rank correlation"]


def show() -> None:
    settings = {name: state.get(name) for name in LAB}
    if settings["bound"] in TWO_SIDED:  # below 1 there is nothing between a threshold and its inverse
        settings["threshold"] = max(settings["threshold"], 1.0)
    lab_part(lab_data(settings, state.generation))
    st.markdown("## Settings worth seeing")
    for index, (title, (text, changes)) in enumerate(SCENARIOS.items()):
        if index % 3 == 0:
            columns = st.columns(3)
        with columns[index % 3].container(border=True):
            st.markdown(f"**{title}**  \n{text}")
            links(Link("Open", {"view": "lab", **query(changes)}), key=f"lab_{title}")
    sentence, by_study = carried()
    st.markdown(f"## {CARRIED_TITLE}\n{CLAIMS} {plain(sentence)}")
    if by_study:
        with st.expander("By study", key="by_study"):
            st.html(by_study)


def lab_data(settings: Mapping[str, Any], generation: Callable[[str], int] = lambda _: 0) -> dict[str, Any]:
    """Return what `lab_part.js` reads, for settings of the names of `LAB`."""
    sliders = []
    for key, (label, values, help) in HANDLES.items():
        value = float(settings[key])
        all_values = sorted({*map(float, values), value})
        sliders.append(vars(Slider(key, label, all_values, value, generation(key), help=help)))
    return {
        "settings": dict(settings), "sliders": sliders,
        "choices": [{"key": key, "label": label, "options": options} for key, (label, options) in CHOICES.items()],
        "pictures": pictures(), "words": WORDS, "ages": list(AGES),
        "rates": {name: list(rates) for name, rates in RATES.items()}, "usual": USUAL_RATE,
    }  # fmt: skip


@cache
def pictures() -> dict[str, dict[str, Any]]:
    """Return the pictures without points, with their titles and captions."""
    drawn = {
        "curves": figures.curves(), "over_threshold": figures.over_threshold(HANDLES["threshold"][1]),
        "gains": figures.gains(AGES, RATES["adamw"]), **{name: figures.part(name) for name in figures.PARTS},
    }  # fmt: skip
    return {key: headed_data(key, Picture(drawn[key], *words), "") for key, words in PICTURES.items()}


def query(changes: Mapping[str, Any]) -> dict[str, str]:
    """Return the address of a scenario: its settings, and the defaults of the others."""
    texts = {**LAB, **changes}
    return {key: f"{value:g}" if isinstance(value, int | float) else value for key, value in texts.items()}


def carried() -> tuple[str, str]:
    """Return what the recorded studies say about the Lab's predictions: a sentence, and a table as HTML.

    Both are empty among the runs of somebody else.
    """
    path = study.FOLDER / "lab.json"
    if not path.is_file():
        return "", ""
    read = json.loads(path.read_text(encoding="utf-8"))
    rows = []
    for name, one in read["scored"].items():
        rank = "{:.2f} [{:.2f}, {:.2f}]".format(*one["correlation"]).replace("-", "−") if "correlation" in one else ""
        counts = [len(one["seen"]), len(read["predicted"][name]["pairs"]), one["hits"], one["misses"], one["not known"]]
        rows.append([study.find_study(name).title, *map(str, counts), rank])
    total = read["overall"]
    share, low, high = (f"{100 * value:.0f} %" for value in total["share"])
    counts = {"hits": total["hits"], "misses": total["misses"], "unknown": total["not known"]}
    sentence = CARRIED.format(pairs=sum(counts.values()), **counts, share=share, low=low, high=high)
    return sentence, f"<div class='rl-outcomes'>{table(CARRIED_HEAD, rows)}</div>"
