"""Sentences of the Start page."""

from collections.abc import Mapping
from dataclasses import dataclass

from text.formatting import percent

INTRODUCTION = "Everything is set for you, and you cannot break anything."
LESSONS, PAPERS, CODE = "Lessons", "Papers", "Code"


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
    sentence=(
        "A real language model. The only mismatch is rounding to bfloat16: the two probabilities of an uncertain token "
        "differ by a few percent."
    ),
    button="Open the healthy run",
    tour="healthy",
    run="smol_bf16_both",
    preset="decoupled_geo_rs",
)
STALE = Story(
    title="Stale",
    sentence="The same model. Weights that are six updates old wrote each batch, so the probabilities differ a lot.",
    button="Open the stale run",
    tour="stale",
    run="smol_stale_6",
    preset="decoupled_token_is",
)
COLLAPSING = Story(
    title="Collapsing",
    sentence="Weights eight steps old, a high learning rate and no correction. The reward climbs, and then falls.",
    button="Open the training runs",
    tour="collapsing",
    run="smol_stale_6",
    preset="disabled",
)
"""If STUDY is not there, LONG is the third story."""
LONG = Story(
    title="Adding up",
    sentence="A coarse KV cache, and answers of four hundred tokens. Over so many tokens, small differences add up.",
    button="Open the long answers",
    tour="long",
    run="long_kv_fp8_e5m2",
    preset="decoupled_seq_is",
)

PLAYED, PLAYED_PRESET, PLAYED_TO = "smol_kv_fp8_e5m2", "decoupled_k3_rs", 0.1
"""The run and the preset of the moving picture, and the value to which its slider moves by itself."""
MOVING = "Drag the threshold: which answers are thrown away?"
MOVING_IS = (
    "One training step of a real language model with a sampler that rounds coarsely. k3 measures the distance between "
    "the two probabilities of a token. Answers whose mean k3 is above the threshold turn grey: the model does not "
    "learn from them."
)
MOVING_LABEL = "Largest allowed mean k3 of an answer (verl: seq_mean_k3)"
OPEN_MOVING = "Open it in the bench"
SHOWN = 24
"""Number of answers that are shown in words."""
WORDS = "What the model wrote: the first {shown} of the {all} answers of this step"
ANSWER = "{rejected} of {all} answers are thrown away. The rest has {kept} of the tokens."


def answer(report: Mapping[str, float], total: int) -> str:
    """Return a sentence about what the rule rejects of a step with this many answers."""
    rejected = round(report["rollout_rs_seq_masked_fraction"] * total)
    return ANSWER.format(rejected=rejected, all=total, kept=percent(report["kept_fraction"]))


DENSITY_TITLE = "Both probabilities of every token"
DENSITY = "On the diagonal the sampler and the trainer agree."
REWARD_TITLE = "Reward, without and with a correction"
REWARD = "Mean over the seeds, per step. The two training runs differ only in the cap on each token's weight."
REWARD_PRESETS = {"disabled": "no correction", "decoupled_token_is": "weights capped at 2"}
"""Preset of the picture → its name there."""
LENGTH_TITLE = "Ratio of each whole answer against its length"
LENGTH = "One point per answer. Independent noise of this size would stay inside the dotted cone."

K3 = "k3 **{k3}**"
TOUR = "A tour of {count} steps shows you around."
MISSING = "The recorded run {run} is not here, so this story has no picture."

YOURS = "Your runs"
YOURS_ARE = "Trained on this machine, newest first."
NONE_YET = "Nothing has been trained on this machine yet."
TRAIN = "Train a real model here"
ANY = "Any run"
ANY_IS = "The run selected below, {run}, opens in every view:"
