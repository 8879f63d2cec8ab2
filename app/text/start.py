"""Sentences of the Start page."""

from dataclasses import dataclass

STUDY = "stale_8"
"""The study with the collapsing training run. If it is not there, LONG is the third story."""


@dataclass(frozen=True)
class Story:
    """One recorded training run, and the page, run and preset that its button opens."""

    title: str
    sentence: str
    press: str
    changes: str
    button: str
    view: str
    run: str
    preset: str
    query: tuple[tuple[str, str], ...] = ()
    """The query of the address, if it is not run and preset."""


HEALTHY = Story(
    title="Healthy",
    sentence=(
        "A real language model. The only mismatch is rounding to bfloat16. The two probabilities of an uncertain token "
        "differ by a few percent, and nothing needs correcting."
    ),
    press="Drag the two bounds of the rule apart, to 0.95 and 1.05.",
    changes=(
        "The grey tokens. The preset's bounds of ±0.1 % are made for long answers. Here they throw away nine tenths of "
        "a batch that has nothing wrong with it."
    ),
    button="Open the healthy run",
    view="bench",
    run="smol_bf16_both",
    preset="decoupled_geo_rs",
)
STALE = Story(
    title="Stale",
    sentence="The same model. Weights that are six updates old wrote each batch, so the probabilities differ a lot.",
    press="Scroll down and choose other methods above the two pictures.",
    changes="The lines. A method caps the weights of the tokens outside its lines, or rejects these tokens.",
    button="Open the stale run",
    view="mismatch",
    run="smol_stale_6",
    preset="decoupled_token_is",
)
COLLAPSING = Story(
    title="Collapsing",
    sentence="Weights eight steps old, a high learning rate and no correction. The reward climbs, and then falls.",
    press="Choose the study there, and the presets to draw.",
    changes="The curves of reward and mismatch. Some presets keep training stable, others only delay the collapse.",
    button="Open the training runs",
    view="training",
    run="smol_stale_6",
    preset="disabled",
    query=(("part", "Study"), ("study", STUDY)),
)
LONG = Story(
    title="Adding up",
    sentence="A coarse KV cache, and answers of four hundred tokens. Over so many tokens, small differences add up.",
    press="Drag the bound of the weight.",
    changes="The weights, the effective sample size and the curves. A bound on a product also limits the length.",
    button="Open the long answers",
    view="bench",
    run="long_kv_fp8_e5m2",
    preset="decoupled_seq_is",
)

PLAYED, PLAYED_PRESET, PLAYED_TO = "smol_kv_fp8_e5m2", "decoupled_k3_rs", 0.1
"""The run and the preset of the moving picture, and the value to which its slider moves by itself."""
MOVING = "Drag the threshold: which answers are thrown away?"
MOVING_IS = (
    "One training step of a real language model with an engine that rounds coarsely. k3 measures the distance between "
    "the two probabilities of a token. The rule rejects each answer whose mean k3 is above the threshold. The model "
    "does not learn from the grey answers."
)
MOVING_LABEL = "Largest allowed mean k3 of an answer (verl: seq_mean_k3)"
OPEN_MOVING = "Open it in the bench"

DENSITY_TITLE = "Both probabilities of every token"
DENSITY = "Horizontal: engine. Vertical: trainer. On the diagonal the two agree."
REWARD_TITLE = "Reward, without and with a correction"
REWARD = "Mean over the seeds, per step. The two training runs differ only in the cap on each token's weight."
REWARD_PRESETS = ("disabled", "decoupled_token_is")
LENGTH_TITLE = "Ratio of each whole answer against its length"
LENGTH = "One point per answer. Independent noise of this size would stay inside the dotted cone."

K3 = "k3 **{k3}**"
PRESS = "**Try:** {press}"
CHANGES = "**Watch:** {changes}"
MISSING = "The recorded run {run} is not here, so this story has no picture."

YOURS = "Your runs"
YOURS_ARE = "Trained on this machine, newest first."
NONE_YET = "Nothing has been trained on this machine yet."
TRAIN = "Train a real model here"
ANY = "Any run"
ANY_IS = "The run selected below, {run}, opens in every view:"
