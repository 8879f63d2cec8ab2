"""What the Start page says."""

from dataclasses import dataclass

STUDY = "stale_8"
"""The study that the collapsing training comes from; without it, LONG is the third story."""


@dataclass(frozen=True)
class Story:
    """One recorded training, and where its button leads: a page, a run and a preset."""

    title: str
    sentence: str
    press: str
    changes: str
    button: str
    view: str
    run: str
    preset: str
    query: tuple[tuple[str, str], ...] = ()
    """What the address of the view says where it is not run and preset."""


HEALTHY = Story(
    title="Healthy",
    sentence=(
        "A real language model, with rounding in bfloat16 alone. The two probabilities of an uncertain token differ by "
        "a few percent, and nothing needs correcting."
    ),
    press="Drag the two bounds of the rule apart, to 0.95 and 1.05.",
    changes=(
        "The grey tokens. The bounds of ±0.1 %, made for long answers, leave out nine tenths of a batch that has "
        "nothing wrong with it."
    ),
    button="Open the healthy run",
    view="bench",
    run="smol_bf16_both",
    preset="decoupled_geo_rs",
)
STALE = Story(
    title="Stale",
    sentence="The same model. Each batch was written by weights that are six updates old: probabilities differ a lot.",
    press="Further down, choose other methods above the two pictures.",
    changes="The lines. Tokens outside a method's lines are what it caps or rejects.",
    button="Open the stale run",
    view="mismatch",
    run="smol_stale_6",
    preset="decoupled_token_is",
)
COLLAPSING = Story(
    title="Collapsing",
    sentence="Weights eight steps old, a high learning rate, no correction: the reward climbs, and then falls.",
    press="Choose the study there, and which of its presets are drawn.",
    changes="The curves of reward and mismatch: some presets keep the training stable, others only delay its end.",
    button="Open the trainings",
    view="training",
    run="smol_stale_6",
    preset="disabled",
    query=(("part", "Study"), ("study", STUDY)),
)
LONG = Story(
    title="Adding up",
    sentence="A coarse KV cache and answers of four hundred tokens. Small ratios multiply over so many tokens.",
    press="Drag the bound of the weight.",
    changes="Weights, effective sample size and the curves: a bound on a product is a bound on the length, too.",
    button="Open the long answers",
    view="bench",
    run="long_kv_fp8_e5m2",
    preset="decoupled_seq_is",
)

PLAYED, PLAYED_PRESET, PLAYED_TO = "smol_kv_fp8_e5m2", "decoupled_k3_rs", 0.1
"""The run and the preset of the moving picture, and the bound to which it goes by itself."""
MOVING = "What one bound does"
MOVING_IS = (
    "One training step of a real language model, with an engine that rounds coarsely. The rule leaves out each answer "
    "whose mean k3, a distance between the two probabilities, is above its bound. Drag the bound: grey answers are not "
    "learned from."
)
OPEN_MOVING = "Open it in the bench"

DENSITY_TITLE = "Both probabilities of every token"
DENSITY = "Engine (across) and trainer (up). On the diagonal the two agree."
REWARD_TITLE = "Reward, without and with a correction"
REWARD = "Mean over the seeds, per step. Both trainings are the same but for the cap on the weights of single tokens."
REWARD_PRESETS = ("disabled", "decoupled_token_is")
LENGTH_TITLE = "The ratio of whole answers, over their length"
LENGTH = "One point per answer. Inside the dotted cone lies what independent noise of this size leaves."

K3 = "k3 **{k3}**"
PRESS = "**Try:** {press}"
CHANGES = "**Watch:** {changes}"
MISSING = "The recorded run {run} is not here, so this story has no picture."

YOURS = "Your runs"
YOURS_ARE = "Trained on this machine, newest first."
NONE_YET = "Nothing has been trained on this machine yet."
TRAIN = "Train a real model here"
ANY = "Any run"
ANY_IS = "The run that is chosen below, {run}, opens in every view:"
