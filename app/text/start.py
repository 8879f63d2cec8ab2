"""Sentences of the Start page."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from text.formatting import percent

TITLE = "Your sampler says {sampler}. Your trainer says {trainer}."
WITHOUT = "Your sampler and your trainer disagree."
"""The title if the run of the picture is not there."""
MODEL = (
    "The same weights, two programs. The sampler, with an 8-bit cache, wrote this “{token}”; the trainer, which must "
    "learn from it, would not have."
)
PLAYED = "smol_kv_fp8_e5m2"
"""The run of the picture."""
SAMPLER, TRAINER = "sampler {share}", "trainer {share}"
MOST_TOKENS = 10

FIX = "Correction"
NOTHING, CAP, REJECT = "nothing", "cap", "reject"
FIXES = (NOTHING, CAP, REJECT)
USUAL, LOW, HIGH = 2.0, 1.002, 20.0
"""The threshold of both corrections, and its range."""
LABELS = {CAP: "Largest weight (looser →)", REJECT: "Largest ratio that is kept (looser →)"}
ANSWERS = {
    NOTHING: "Without a correction the model learns this “{token}” as fully as every other token.",
    CAP: "A token counts by its ratio trainer / sampler, at most {threshold:.3g}: {outside} of the tokens are cut.",
    REJECT: "Left out: tokens with a ratio outside {inverse:.4g} to {threshold:.4g}, {outside} of this step's.",
}  # fmt: skip

STUDY = "smol_last_weights"
ARMS = {"none": NOTHING, "token_cap": CAP, "fresh": "no mismatch"}
"""Arm of the study → its name in the picture; those of corrections are options of the control."""
GAINED = "What a cap gained"
GAINED_IS = "New sums solved after training, weights six updates old. Ten runs each, planned before."
NOT_TRAINED = "Rejecting tokens was not a part of this study."
OPEN_STUDY = "The study"

LESSONS, CODE, TRAIN = "Lessons", "Code", "Train a real model here"


def answer(fix: str, token: str, threshold: float, report: Mapping[str, float]) -> str:
    """Return a sentence about what a correction does to a step; `report` has its metrics."""
    outside = percent(report.get("rollout_is_oob_ratio", 0.0))
    return ANSWERS[fix].format(token=token, threshold=threshold, inverse=1 / threshold, outside=outside)


def counted(weight: float) -> str:
    """Return how much a token counts."""
    return f"× {np.format_float_positional(weight, 1, fractional=False, trim='-')}" if weight else "out"


# --- cards ---


@dataclass(frozen=True)
class Story:
    """One recorded training run, and the tour that its button begins."""

    title: str
    sentence: str
    button: str
    tour: str
    """Key in `tours.TOURS`."""
    run: str
    """The run of the picture."""
    preset: str


HEALTHY = Story(
    title="Healthy",
    sentence="The only mismatch is rounding to bfloat16. The two probabilities differ by a few percent.",
    button="Open the healthy run",
    tour="healthy",
    run="smol_bf16_both",
    preset="decoupled_geo_rs",
)
STALE = Story(
    title="Stale",
    sentence="Weights that are six updates old wrote each batch. The probabilities differ a lot.",
    button="Open the stale run",
    tour="stale",
    run="smol_stale_6",
    preset="decoupled_token_is",
)
COLLAPSING = Story(
    title="Collapsing",
    sentence="Weights eight steps old, a high learning rate. Without a correction the reward climbs, and then falls.",
    button="Open the training runs",
    tour="collapsing",
    run="smol_stale_6",
    preset="disabled",
)
"""If its study is not there, its card is not there."""
LONG = Story(
    title="Adding up",
    sentence="An 8-bit cache, and answers of four hundred tokens. Over so many tokens, small differences add up.",
    button="Open the long answers",
    tour="long",
    run="long_kv_fp8_e5m2",
    preset="decoupled_seq_is",
)
STORIES = (HEALTHY, STALE, LONG, COLLAPSING)

DENSITY_TITLE = "Both probabilities of every token"
DENSITY = "On the diagonal the sampler and the trainer agree."
REWARD_TITLE = "Reward, without and with a correction"
REWARD = "Mean over the seeds, per step. The two training runs differ only in the cap on each token's weight."
REWARD_PRESETS = {"disabled": "no correction", "decoupled_token_is": "capped at 2"}
"""Preset of the picture → its name there."""
LENGTH_TITLE = "Ratio of each whole answer against its length"
LENGTH = "One point per answer. Independent noise of this size would stay inside the dotted cone."
MISSING = "The recorded run {run} is not here, so this story has no picture."

LAB_TITLE, LAB, OPEN_LAB = (
    "Lab", "Turn a threshold, and small policies train in front of you, in your browser.", "Open the Lab"
)  # fmt: skip
OWN_TITLE, OWN, OPEN_OWN = (
    "Your run", "Log-probs of verl, TRL, SkyRL or another system. They stay on this machine.", "Drop your own file"
)  # fmt: skip
OWN_DROP = ".jsonl · .parquet · .npz · .pt · .safetensors"
