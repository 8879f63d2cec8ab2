"""What several pages say."""

from collections.abc import Mapping
from typing import Literal

from rlcorr import CorrectionConfig
from rlcorr.teaching.glossary import define
from text.formatting import percent

EXPLAIN = (
    "A language model in training writes answers with a fast engine (vLLM) and learns from them with a slower, more "
    "exact program (the trainer). Both hold the same weights, yet they give the same token slightly different "
    "probabilities, so the model learns from text that it would not have written quite like that. The correction "
    "compares the two probabilities of every token, their ratio, and then counts a token more, counts it less, or "
    "leaves it out."
)

COLOURS = "Warm: ratio above 1. Cool: ratio below 1. Green: on the line, or kept. Grey: rejected. Blank: padding."

WEIGHTS = (
    "Bars: final weights of the kept tokens. Grey line: the same tokens before the bounds. Counts are logarithmic; "
    "the outermost bars hold everything beyond. A dashed bound can be pulled."
)
STATISTIC = (
    "What the rule compares with its bounds (dashed), which can be pulled. Grey bars lie outside and are rejected."
)
MASK = "Rows are sequences, columns are tokens. Where several tokens share a cell, the most severe outcome shows."

LEVEL = (
    "What a weight is: each token's own ratio, the product of the ratios of its sequence, or their geometric mean. "
    "None: every token counts 1."
)
MODE = "What happens to a weight outside its bounds: it becomes the bound (truncate), or 0 (mask)."
RULES = "Rules that leave out tokens, or whole sequences, whose divergence lies outside the bounds."
DENOMINATOR = define("denominator")
NORMALISE = "Divide the weights by their mean over what is kept, or leave them as they are."

CURVES_OVER = (
    "The whole correction over the range of its first bound, other bounds unchanged. Dotted: where it stands; the line "
    "can be pulled."
)
LEFT_OF_RULE = "How far apart the two policies are on the tokens that this rule keeps, and how uneven their ratios."
LEFT_OF_WEIGHTS = "Bounds take noise away (χ² of the weights) and bring bias (what their mean lacks to 1)."
Budget = Literal["keep", "ess"]
BUDGETS: dict[str, Budget] = {"of the tokens inside": "keep", "effective sample size of the kept": "ess"}
BUDGET = "Find the bounds for a target."
BUDGET_AFTER = "The whole correction then keeps {kept} of the tokens; their effective sample size is {ess}."
BUDGET_MISSED = "{part}: with the threshold {threshold:.4g} the whole correction reaches {reached}."
BUDGET_NONE = "{share} is not reached."
M2 = (
    "The mean squared log-ratio of what the rule token_k2 keeps, which is M2PO's threshold: whoever moves the bound, "
    "moves it. 0.04 is the paper's; AReaL calls it actor.m2_threshold."
)
M2_BUDGET = "Or M2PO's threshold, the mean squared log-ratio of what is kept"
USE_IT = "The configuration as it stands, ready to copy, or what comes nearest where a system cannot say it."
SYSTEM = "Your system"
BEYOND_DEFAULTS = "Not {system}'s own defaults: {lines}."
DEFAULTS = "These are {system}'s own defaults."
WRONG_SYSTEM = "system='{raw}' is not known. Known: {allowed}."
TOLERANCE = (
    "A bound on a product of {length:.0f} ratios, the mean length here, allows each token a mean factor between "
    "{lower} and {upper}."
)
UPLOAD = (
    "Parquet or JSON Lines with a response per row, .npz, .pt or .safetensors with arrays and a mask. Needed are the "
    "log-probs of the engine and of the trainer: rollout_log_probs and old_log_probs, or as NeMo RL, prime-rl, slime, "
    "SkyRL and verl call them. Several files become the steps of one run. They stay on this machine and are forgotten "
    "when the app ends."
)
CLAMP_ROUNDING = "Read log-probs above 0, up to 0.125, as 0: bfloat16 rounded them up (clamp_rounding)"
UPLOADED = "Your file {name}."

NO_RUNS = "No runs yet in {root}. Record one with `make train` or `python -m rlcorr train`; it appears here by itself."
NO_STEPS = "This run has no step yet. The first one appears here by itself."

STATUS = {
    "running": "running",
    "complete": "complete",
    "interrupted": "interrupted before its last step",
    "stopped": "stopped without finishing: its manifest says running, but no file has changed for over a minute",
    "unknown": "status unknown: its manifest cannot be read",
}

ANSWER = "This keeps {kept} of the tokens{cut}, with an effective sample size of {ess}."
CUT = ", cuts the weights of {cut}"


def bench_answer(report: Mapping[str, float]) -> str:
    """What a bound costs and leaves, in a sentence."""
    cut = report.get("rollout_is_oob_ratio", 0.0)
    return ANSWER.format(
        kept=percent(report["kept_fraction"]),
        cut=CUT.format(cut=percent(cut)) if cut else "",
        ess=percent(report["trained_eff_sample_size"]),
    )


def m2_rule(config: CorrectionConfig) -> int | None:
    """The rule whose bound is a threshold of M2PO."""
    return next((i for i, rule in enumerate(config.rollout_rs) if rule.name == "token_k2"), None)


def budget_part(config: CorrectionConfig, rule: int | None) -> str:
    """Whose bounds a budget moves."""
    return "Weights" if rule is None else f"Rule {config.rollout_rs[rule].name}"
