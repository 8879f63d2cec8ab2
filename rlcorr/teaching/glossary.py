"""The glossary: the meaning of each technical term. Metrics are described in `measuring.metrics` only."""

from dataclasses import dataclass

from rlcorr.errors import unknown
from rlcorr.measuring.metric_definitions import METRICS
from rlcorr.measuring.metrics import describe


@dataclass(frozen=True)
class Term:
    """An entry of the glossary. It has either a meaning or a metric."""

    symbol: str = ""
    meaning: str = ""
    metric: str = ""
    """The metric whose description is the meaning."""
    also: str = ""
    """Other names."""


GLOSSARY: dict[str, Term] = {
    # --- who samples, who learns ---
    "policy": Term("π", "The rule that gives every possible next token its probability."),
    "sampler": Term(
        "", "The program that writes the answers, built for speed: vLLM, SGLang.", also="engine, rollout, inference"
    ),
    "trainer": Term(
        "", "The program that computes gradients, built for exactness: PyTorch.", also="actor, learner, training"
    ),
    "π_rollout": Term(
        "q", "The policy that sampled the tokens, with the log-probs that the sampler reports.",
        also="behaviour policy, sampler policy",
    ),
    "π_old": Term("p", "The trainer's policy before the update, on the same tokens.", also="proximal policy"),
    "π_θ": Term("", "The trainer's policy during the update. Before the first step it equals π_old."),
    "π_ref": Term("", "A fixed policy. A KL term keeps the trained policy close to it."),
    "mismatch": Term(
        "", "π_old ≠ π_rollout, although both should be the same policy: rounding, other kernels, a quantised KV "
        "cache, sampler settings, old weights, bugs.", also="training–inference gap, off-policy gap",
    ),
    "staleness": Term(
        "", "The number of updates by which the weights that sampled the tokens are older than the trainer's.",
        also="policy lag, off-policyness",
    ),
    "on-policy": Term("", "Tokens sampled from the policy whose gradient is taken: every ratio is 1."),
    # --- one token, one answer ---
    "log-ratio": Term("d", "log π_old − log π_rollout of one token."),
    "ratio": Term("r = eᵈ", "π_old/π_rollout: how often the trainer would write a token for each time the sampler "
        "did."),
    "response mask": Term("mask", "True for the tokens of a response, False for padding."),
    "advantage": Term("A", "How much better an answer, or a token, is than expected."),
    "token level": Term("", "Every token has its own ratio. Low variance, but biased, because the tokens before it are "
        "not corrected."),
    "sequence level": Term("∏ r", "The product of an answer's ratios. Unbiased, but its variance grows with "
        "the length of the answer."),
    "geometric level": Term("(∏ r)^(1/T)", "The geometric mean of an answer's ratios. Its size does not depend on "
        "the length. It is more useful for measuring than for correcting."),
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
    "importance weight": Term("w", "The factor by which the gradient of a token, or of an answer, is multiplied. It "
        "turns an average over the sampler's tokens into one over the trainer's."),
    "truncation": Term("min(r, C)", "A weight outside its thresholds becomes the nearest threshold.",
        also="TIS, clamp, cap, clip"),
    "masking": Term("r·[a ≤ r ≤ b]", "A weight outside its thresholds becomes 0.", also="IcePop, MIS"),
    "rejection": Term("", "A rule leaves out tokens, or whole answers, whose divergence is outside its thresholds.",
        also="rejection sampling, filter, mask"),
    "veto": Term("", "A rule that rejects a whole answer because of one impossible token.", also="outlier mask"),
    "kept tokens": Term("", metric="kept_fraction"),
    "clipped mass": Term("", metric="rollout_is_oob_ratio"),
    "effective sample size": Term("(Σw)²/(n Σw²)", metric="trained_eff_sample_size", also="ESS"),
    "denominator": Term("", "The number by which the loss is divided: all response tokens (fixed), so that rejection "
        "makes the step smaller, or only the kept tokens (kept)."),
    "learning-rate factor": Term("", metric="lr_factor"),
    "decoupled PPO": Term("", "Three policies: the weight corrects π_rollout to π_old, the clip keeps π_θ near π_old."),
    "bypass": Term("", "Two policies: the loss compares π_θ with π_rollout directly, and π_old is never computed."),
    # --- what it does to the gradient ---
    "bias": Term("", "How far the average gradient is from the one without a mismatch. More data does not reduce it."),
    "noise": Term("", "How far the gradient of one batch is from the average gradient. More data reduces it.",
        also="standard deviation, variance"),
    "budget": Term("", "The largest accepted cost of a threshold, in tokens or in effective sample size. The threshold "
        "is computed from it."),
}  # fmt: skip
"""Word → term, in the order in which a reader needs them."""


def define(word: str) -> str:
    """Return the meaning of a word. Raises `UsageError`, with the nearest word, if the glossary does not have it."""
    if word not in GLOSSARY:
        raise unknown("word", word, GLOSSARY)
    term = GLOSSARY[word]
    return describe(term.metric) if term.metric else term.meaning


def find(text: str) -> list[str]:
    """Find the words whose name, symbol, meaning or other names contain this text, ignoring case.

    An empty text matches all words.
    """
    wanted = text.casefold().strip()
    parts = {word: (word, term.symbol, define(word), term.also) for word, term in GLOSSARY.items()}
    return [word for word, texts in parts.items() if wanted in "\n".join(texts).casefold()]


def find_metrics(text: str) -> dict[str, str]:
    """Find the metrics whose name or description contains this text, ignoring case: name → description."""
    wanted = text.casefold().strip()
    return {key: meaning for key in METRICS if wanted in f"{key}\n{(meaning := describe(key))}".casefold()}
