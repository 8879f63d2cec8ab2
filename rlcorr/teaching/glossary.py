"""One vocabulary: what each word of the field means here. Metrics are described in `report`, and nowhere else."""

from dataclasses import dataclass

from rlcorr.errors import unknown
from rlcorr.measuring.metric_definitions import METRICS
from rlcorr.measuring.metrics import describe


@dataclass(frozen=True)
class Term:
    """A word: its symbol, its meaning, or the metric whose description is its meaning, and how others call it."""

    symbol: str = ""
    meaning: str = ""
    metric: str = ""
    also: str = ""


GLOSSARY: dict[str, Term] = {
    # --- who samples, who learns ---
    "policy": Term("π", "The rule that gives every possible next token its probability."),
    "engine": Term(
        "", "The program that writes the answers, built for speed: vLLM, SGLang.", also="rollout, inference, sampler"
    ),
    "trainer": Term(
        "", "The program that computes gradients, built for exactness: PyTorch.", also="actor, learner, training"
    ),
    "π_rollout": Term(
        "q", "The policy that sampled the tokens, with the log-probs that the engine reports.",
        also="behaviour policy, sampler policy",
    ),
    "π_old": Term("p", "The trainer's policy before the update, on the same tokens.", also="proximal policy"),
    "π_θ": Term("", "The trainer's policy while the update goes on. Before its first step it is π_old."),
    "π_ref": Term("", "A policy that does not move, to which a KL term holds the trained one."),
    "mismatch": Term(
        "", "π_old ≠ π_rollout, although both should be the same policy: rounding, other kernels, a quantised KV "
        "cache, sampler settings, old weights, bugs.", also="training–inference gap, off-policy gap",
    ),
    "staleness": Term("", "By how many updates the weights that sampled are older.", also="policy lag, off-policyness"),
    "on-policy": Term("", "Tokens sampled by the very policy whose gradient is taken: every ratio is 1."),
    # --- one token, one answer ---
    "log-ratio": Term("d", "log π_old − log π_rollout of one token."),
    "ratio": Term("r = eᵈ", "π_old/π_rollout: how often the trainer would write a token for each time the engine did."),
    "response mask": Term("mask", "True for the tokens of a response, False for padding."),
    "advantage": Term("A", "By how much an answer, or a token, is better than what was expected."),
    "token level": Term("", "Every token has its own ratio: little noise, and biased, since what came before it is not "
        "corrected."),
    "sequence level": Term("∏ r", "The product of an answer's ratios. Unbiased, and noisier the longer the answer."),
    "geometric level": Term("(∏ r)^(1/T)", "The geometric mean of an answer's ratios, so a number of the same size "
        "whatever the length. It measures more than it corrects."),
    # --- how far apart ---
    "k1": Term("−d", metric="kl"),
    "k2": Term("d²/2", metric="k2_kl"),
    "k3": Term("eᵈ − 1 − d", metric="k3_kl"),
    "mean |Δ|": Term("mean |d|", metric="abs_log_ratio"),
    "χ²": Term("", metric="chi2_token"),
    "k1+, k2+, k3+": Term(
        "", "KL losses with the value of the estimator and the gradient of k2: straight through.", also="low_var_kl+"
    ),
    # --- what is done about it ---
    "importance weight": Term("w", "What the gradient of a token, or of an answer, is multiplied by, so that an "
        "average over the engine's tokens becomes one over the trainer's."),
    "truncation": Term("min(r, C)", "A weight beyond its bound becomes the bound.", also="TIS, clamp, cap"),
    "masking": Term("r·[a ≤ r ≤ b]", "A weight outside its bounds becomes 0.", also="IcePop, MIS"),
    "rejection": Term("", "A rule leaves out tokens, or whole answers, whose divergence lies outside its bounds.",
        also="rejection sampling, filter, mask"),
    "veto": Term("", "One impossible token rejects its whole answer.", also="outlier mask"),
    "kept tokens": Term("", metric="kept_fraction"),
    "clipped mass": Term("", metric="rollout_is_oob_ratio"),
    "effective sample size": Term("(Σw)²/(n Σw²)", metric="trained_eff_sample_size", also="ESS"),
    "denominator": Term("", "What the loss is divided by: all response tokens (fixed), so that rejecting makes the "
        "step smaller, or those that are kept (kept)."),
    "learning-rate factor": Term("", metric="lr_factor"),
    "decoupled PPO": Term("", "Three policies: the weight corrects π_rollout to π_old, the clip holds π_θ near π_old."),
    "bypass": Term("", "Two policies: the loss compares π_θ with π_rollout at once, and π_old is never computed."),
    # --- what it does to the gradient ---
    "bias": Term("", "How far the average gradient is from the one without a mismatch. More data does not mend it."),
    "noise": Term("", "How far the gradient of one batch is from the average gradient. More data mends it.",
        also="standard deviation, variance"),
    "budget": Term("", "What a bound may cost, in tokens or in effective sample size; the bound follows from it."),
}  # fmt: skip
"""Word → term, in the order in which one needs them."""


def define(word: str) -> str:
    """What a word of the glossary means. Raises `UsageError` with the nearest word."""
    if word not in GLOSSARY:
        raise unknown("word", word, GLOSSARY)
    term = GLOSSARY[word]
    return describe(term.metric) if term.metric else term.meaning


def find(text: str) -> list[str]:
    """The words whose name, symbol, meaning or other names hold this text, whatever its case; all for an empty one."""
    wanted = text.casefold().strip()
    parts = {word: (word, term.symbol, define(word), term.also) for word, term in GLOSSARY.items()}
    return [word for word, texts in parts.items() if wanted in "\n".join(texts).casefold()]


def find_metrics(text: str) -> dict[str, str]:
    """Metric of the report → its description, for those that hold this text."""
    wanted = text.casefold().strip()
    return {key: meaning for key in METRICS if wanted in f"{key}\n{(meaning := describe(key))}".casefold()}
