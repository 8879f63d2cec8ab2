"""Sentences of several pages."""

from collections.abc import Mapping

from rlcorr import CorrectionConfig
from rlcorr.analysis.in_words import statistic
from rlcorr.bounds import BoundId, Side
from rlcorr.rules import RejectionRule
from rlcorr.teaching.glossary import define
from text.formatting import percent

WHAT_IS_THIS = "What is this?"
BATCH_SIZE, BATCH_SIZE_IS = "Answers in a batch (B)", "Larger batches cut the noise, not the bias."
SIDES: Mapping[Side, str] = {"upper": "Largest", "lower": "Smallest", "band": "Allowed"}
"""Beginning of the label of a slider: which threshold it moves."""
LARGEST, SMALLEST = "Largest weight", "Smallest weight"
EXPLAIN = (
    "A language model in training writes answers with a fast program, the sampler (for example vLLM). It learns from "
    "them in a slower and more exact program, the trainer. Both have the same weights, yet they give the same token "
    "slightly different probabilities. So the model learns from text that it would not have written in quite the same "
    "way. A correction compares the two probabilities of every token. Depending on their ratio it counts the token "
    "more, counts it less, or leaves it out. A threshold is the limit at which it does so; formulas call it a bound. "
    "Other names of the sampler are engine and rollout, and of an answer response and sequence."
)

TRAINING_HERE, OPEN_RUN = "A run is training here: {run}, step {step}.", "Open it"

COLOURS = (
    "Orange: ratio above 1, or a weight cut at the upper threshold. Blue: ratio below 1, or a weight cut at the lower "
    "one. Green: kept, and your setting. Grey: rejected. Blank: padding."
)

WEIGHTS = (
    "Bars: final weights of the kept tokens. Grey line: weights of the same tokens before the thresholds. The counts "
    "are logarithmic. The outermost bars contain everything outside the axis. You can drag a dashed threshold."
)
STATISTIC = (
    "The number that the rule compares with its thresholds (dashed; you can drag them). Grey bars are outside the "
    "thresholds: they are rejected."
)
MASK = "Rows are sequences, columns are tokens. If several tokens share a cell, it shows the most severe outcome."
COST, EFFECT = "Cost of the threshold", "Effect of the threshold"

CHOICES = "Advanced: weights and rejection rules"
CONTRADICTION = "Showing the preset itself."
RESET, RESET_B = "Reset to the preset's numbers", "Reset B to the preset's numbers"
LEVEL = (
    "The weight of a token is its own ratio, the product of the ratios of its sequence, their geometric mean, or the "
    "product of the ratios up to this token (prefix). With none, every token has weight 1."
)
MODE = "A weight outside its thresholds becomes the threshold (truncate), or 0 (mask)."
RULES = "Rules that reject tokens or whole sequences if their divergence is outside the thresholds."
DENOMINATOR = define("denominator")
NORMALISE = "Divide the weights by their mean over the kept tokens, or leave them as they are."

CENTERED = (
    "Score centering changes the loss, neither weights nor kept tokens. This page shows the correction without it."
)
CENTERED_GRADIENT = "`python -m rlcorr gradients RUN --score-centering` measures it on steps with every likely answer."
MOVED = "Centered"
MOVED_IS = (
    "The size of what score centering subtracts, averaged over the tokens. Without weights it is the sum of |q − p| "
    "over the next tokens, where q is the sampler's probability and p the trainer's. It is 0 if both agree."
)
PER_TURN = "Correct each turn on its own"
PER_TURN_IS = (
    "Products, means and rules of an answer are then those of each turn between the answers of tools, and a sequence "
    "on this page is a turn."
)
NO_TURNS = "This batch has no turns (turn_ids), so an answer can only be corrected as a whole."
PER_TURN_EXPORT = (
    "No system corrects each turn on its own, so there is no text for one. In Python, "
    "`rlcorr.analysis.segments.correct_per_turn(batch, config)` does it."
)

CURVES_OVER = (
    "The whole correction at every value of its first threshold; the others stay as they are. Dotted: the present "
    "value. You can drag this line."
)
LEFT_OF_RULE = "On the tokens that this rule keeps: the distance of the two policies, and the spread of the ratios."
LEFT_OF_WEIGHTS = "A tighter threshold has less noise (χ² of the weights) and more bias (1 − mean weight)."
REJECTED_COUNT = "A rejected token has weight 0 here."
BUDGET_TITLE = "Budget"
BUDGET = "Find the threshold for a target."
BUDGET_KEEP, BUDGET_ESS = "share of tokens within the thresholds", "effective sample size of the kept tokens"
BUDGET_SHARE, BUDGET_SET = "At least, %", "Set it"
BUDGET_REACHED = "{part}: threshold **{threshold:.6g}**"
BUDGET_AFTER = "The whole correction then keeps {kept} of the tokens. Their effective sample size is {ess}."
BUDGET_MISSED = "{part}: the best threshold, {threshold:.4g}, reaches {reached} with the whole correction."
BUDGET_REFUSED = "{part}: {refusal}"
BUDGET_NONE = "No threshold reaches {share}."
M2 = (
    "The mean squared log-ratio of the tokens that the rule token_k2 keeps. This is M2PO's threshold; it moves with "
    "the slider. The paper uses 0.04. In AReaL it is called actor.m2_threshold."
)
M2_BUDGET = "Or set M2PO's threshold, the mean squared log-ratio of the kept tokens"
PASTE = "Paste your configuration"
PASTE_IS = (
    "The correction of verl, SkyRL or TRL as YAML, JSON, Python or overrides of a command line. A whole configuration "
    "may be pasted, too."
)
PASTE_SHOW = "Show it on this page"
PASTE_READ = "Read as {system}'s:"
PASTE_NO_CONTROL = "This page has no controls for this correction, so it shows another one. In Python it is:"
EXPORT = "Export the config"
EXPORT_IS = (
    "This configuration as text to copy, for your system. If the system cannot express it, you get the nearest one "
    "that it can."
)
EXPORT_MADE = "# made with rlcorr"
EXPORT_LINK = "# made with rlcorr; this state of the playground: {address}"
COMMAND_LINE = "Or on the command line, without a change of the file"
SYSTEM = "Your system"
BEYOND_DEFAULTS = "Not {system}'s own defaults: {lines}."
DEFAULTS = "These are {system}'s own defaults."
WRONG_SYSTEM = "system='{raw}' is not known. Known: {allowed}."
UPLOAD = (
    "Parquet or JSON Lines with one answer per row; or .npz, .pt or .safetensors with arrays and a mask. Required "
    "are the log-probs of the sampler and of the trainer: rollout_log_probs and old_log_probs, or the names that NeMo "
    "RL, prime-rl, slime, SkyRL and verl use. Several files become the steps of one run. The server of this "
    "page keeps them for a day at most, and deletes them when it stops."
)
TURN = "The server is working on another visitor's large file. Yours is next."
UPLOAD_LABEL = "One file per training step (or per rank)"
REPAIRS = {
    "clamp_rounding": "Read log-probs between 0 and 0.125 as 0: rounding to bfloat16 made them positive",
    "nan_is_ratio_one": "Leave out tokens whose engine log-prob is NaN",
    "leave_out_aborted": "Leave out answers for which one side has no log-prob, such as aborted ones",
    "join": "Join the rows that several files have of one step: shards, or a file per micro-batch",
}
"""Option of `rlcorr import` → what its box says. Without it, such files are refused with the option's name."""
UPLOADED = "Your file {name}."
WELCOME = "Read {responses} answers with {tokens:,} tokens{steps}; every view shows them now."
IN_STEPS = " in {steps} steps"
MISSING = "Not in the file: {fields}."

NO_RUNS = "No runs yet in {root}. Record one with `make train` or `python -m rlcorr train`; it appears here by itself."
NO_STEPS = "This run has no step yet. The first one appears here by itself."

STATUS = {
    "running": "running",
    "complete": "complete",
    "interrupted": "interrupted before its last step",
    "stopped": "stopped without finishing: its manifest says running, but no file has changed for over a minute",
    "unknown": "status unknown: its manifest cannot be read",
}


SHOW_STEP = "Show step {step}"


def recorded_steps(count: int) -> str:
    """Return how many steps of a run are recorded.

    >>> recorded_steps(0), recorded_steps(1), recorded_steps(4)
    ('no step recorded yet', '1 step recorded', '4 steps recorded')
    """
    return "no step recorded yet" if count == 0 else f"{count} step{'' if count == 1 else 's'} recorded"


ANSWER = "This keeps {kept} of the tokens{clipped}. The effective sample size is {ess}."
CLIPPED: Mapping[str, str] = {
    "truncate": " and clips the weights of {clipped}",
    "mask": " and sets the weights of {clipped} to 0",
}
"""Mode → what the sentence says of weights outside the thresholds."""


def bench_answer(report: Mapping[str, float], mode: str) -> str:
    """Return a sentence about what the correction keeps, and what it does to weights outside the thresholds."""
    clipped = report.get("rollout_is_oob_ratio", 0.0)
    return ANSWER.format(
        kept=percent(report["kept_fraction"]),
        clipped=CLIPPED[mode].format(clipped=percent(clipped)) if clipped else "",
        ess=percent(report["trained_eff_sample_size"]),
    )


def budget_part(config: CorrectionConfig, bound: BoundId) -> str:
    """Return the name of the rule, or of the weights, whose thresholds a budget moves."""
    index = bound.rule_index
    return "Weights" if index is None else rule_title(config.rollout_rs[index])


def in_words(sentence: str) -> str:
    """Return a sentence of the library in the words of the pages, which call its engine the sampler.

    >>> in_words("The engine's part, if an engine in bfloat16 samples.")
    "The sampler's part, if a sampler in bfloat16 samples."
    """
    return sentence.replace("an engine", "a sampler").replace("engine", "sampler")


def rule_title(rule: RejectionRule) -> str:
    """Return the name of what a rule compares, and the slug of the rule.

    >>> rule_title(RejectionRule.named("seq_mean_k3", upper=0.01))
    'Mean k3 (seq_mean_k3)'
    """
    text = statistic(rule)
    return f"{text[0].upper()}{text[1:]} ({rule.name})"


def rule_label(rule: RejectionRule, side: Side) -> str:
    """Return the label of the slider of one threshold of a rule.

    >>> rule = RejectionRule.named("seq_mean_k1", lower=0.999, upper=1.001)
    >>> rule_label(rule, "lower"), rule_label(rule, "upper")
    ('Smallest mean ratio (seq_mean_k1)', 'Largest mean ratio (seq_mean_k1)')
    """
    return f"{SIDES[side]} {statistic(rule)} ({rule.name})"
