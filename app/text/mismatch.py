"""Sentences of the Mismatch page."""

from collections.abc import Sequence

from rlcorr import PRESETS
from rlcorr.analysis.published import rounding
from rlcorr.analysis.regions import TOKEN_METHODS, has_region
from rlcorr.analysis.resampling import Estimate
from rlcorr.analysis.segments import AgeShare
from rlcorr.analysis.symptoms import Pattern, Symptom, percent, short

OFFERED = TOKEN_METHODS | {name: entry.config for name, entry in PRESETS.items() if has_region(entry.config)}
DRAWN = ["TIS", "IcePop", "KPop", "DPPO"]
"""The methods that can be drawn, and those that are if nobody picks others."""

RECORDED = "{cause}: k3 is {k3}."
"""The heading of a committed run, whose record names the cause, if the log-probs alone do not show it."""
RECORDED_IS = "The record of this run names the cause. Choose a threshold, and see what it costs."
WHY = "What the log-probs alone say"
CHECKS = {
    "Old weights?": "Sync the weights and measure. Gap gone? It was old weights.",
    "Rounding?": "Measure with the sampler in float32, its KV cache too. Gap gone? It was the sampler's rounding.",
}
"""Check → how to do it, and what its result means."""
ALSO = "Also: {sentence}"
OLD = "Looks like old weights: about {share} of k3 comes with their age. {sentence}"
BY_SIZE = "By its size alone: {sentence}"


def headline(sentence: str) -> tuple[str, str]:
    """Split the sentences of a symptom into the first one, which is a heading, and the others.

    >>> headline("Undecided: k3 is 0.01. Gaps of this size have several causes. Measure again.")
    ('Undecided: k3 is 0.01.', 'Gaps of this size have several causes. Measure again.')
    """
    first, stop, others = sentence.partition(". ")
    return first + stop.strip(), others


_TOKENS, _THRESHOLD = ("tokens", "See the tokens"), ("bench", "Choose a threshold")
_FIX = ("Fix this before you choose a correction. The tokens show where it is.", *_TOKENS)
NEXT: dict[Pattern, tuple[str, str, str]] = {
    "not finite": _FIX,
    "identical": (
        "If two programs computed the two sides, one was probably copied from the other. Check what was recorded.",
        "training", "See how the run was made",
    ),
    "shift by one": _FIX,
    "padding": _FIX,
    "top-p mass": ("Sample without top-p and top-k, or take both log-probs from the same distribution.", *_TOKENS),
    "temperature": ("Use one temperature for sampling and for both log-probs.", *_TOKENS),
    "stale tensor": (
        "Check first: are the rows of the output head the same on both sides? Then choose a threshold.",
        *_TOKENS,
    ),
    "clean": ("The log-probs give no reason to correct.", "bench", "See what a threshold would cost"),
    "precision": (
        "The log-probs show nothing except rounding. Choose a threshold that leaves rounding alone.",
        *_THRESHOLD,
    ),
    "undecided": (
        "Check first, then choose a threshold, and see what it costs.",
        *_THRESHOLD,
    ),
    "old weights": (
        "Sample with newer weights, or correct their age. Then choose a threshold, and see what it costs.",
        *_THRESHOLD,
    ),
    "beyond rounding": (
        "Fix this before you choose a correction. Check first: do both sides see the same prompt and the same chat "
        "template? Are the weights very old?",
        *_TOKENS,
    ),
    "outlier": (
        "Look at the token first. If it was recorded wrongly, leave it out. If it is real, a cap or a rule limits its "
        "effect. The next verdict is that of the other tokens.",
        *_TOKENS,
    ),
}  # fmt: skip
"""Pattern that `triage` returns → (what to do, the view that helps, the text of its link)."""

ROUNDING: tuple[Pattern, ...] = ("clean", "precision", "undecided", "old weights")
"""Patterns that a size alone decides. Old weights may have made any of these gaps; versions show whether they did."""


def _is_old(symptom: Symptom, part: AgeShare | None) -> bool:
    """Check for a gap that mostly comes with the age of the weights: it is no rounding, whatever its size is."""
    return part is not None and part.is_most and symptom.pattern in ROUNDING


def verdict(symptoms: Sequence[Symptom], part: AgeShare | None) -> list[str]:
    """Return the sentences about a step in the order in which they are read; the first one becomes the heading."""
    first, *others = [symptom.sentence for symptom in symptoms]
    also = [ALSO.format(sentence=sentence) for sentence in others]
    if part is None or symptoms[0].pattern not in ROUNDING:
        return [first, *also]
    if not _is_old(symptoms[0], part):
        return [first, *also, ALSO.format(sentence=part.sentence)]
    old = OLD.format(share=percent(part.share), sentence=part.sentence)
    return [old, BY_SIZE.format(sentence=first), *also]


def next_step(symptom: Symptom, part: AgeShare | None) -> tuple[str, str, str]:
    """Return what to do about a symptom, the view that helps, and the text of its link."""
    return NEXT["old weights" if _is_old(symptom, part) else symptom.pattern]


SIZES = {
    "Mean |Δ|": ("abs_log_ratio", "Mean absolute difference of the two log-probs."),
    "k3": (
        "k3",
        f"Mean of eᵈ − 1 − d, which estimates the KL divergence. Rounding to bfloat16 alone has been measured to give "
        f"up to {short(rounding('bfloat16')[1])}.",
    ),
    "Mean e^|Δ|": (
        "mult_error",
        "The mean factor between the two probabilities. NeMo RL suspects a bug above 1.05.",
    ),
    "Mean ratio": (
        "mean_ratio",
        "1 up to noise, if the sampler's log-probs are those of the policy that sampled, without top-p and top-k.",
    ),
}
"""Label on the page → (name in the numbers of a symptom, what it means)."""

METHODS = "Methods to draw"
EXPLAINED = "What these methods do"

PARTS = "Where the gap comes from"
PART_ROWS = {"whole gap": "", "sampler": "engine_", "age": "age_"}
"""Name of a row → the beginning of its metrics."""
PART_COLUMNS = {
    "k3": "k3_kl",
    "mean |d|": "abs_log_ratio",
    "largest |d|": "abs_log_ratio_max",
    "mean ratio": "is_ratio_mean",
    "ESS": "ratio_eff_sample_size",
}
PART_MEANINGS = {
    "sampler": "Log-prob of the sampling weights in the trainer's arithmetic, less the sampler's log-prob.",
    "age": "Log-prob of the present weights less that of the sampling weights, both in the trainer's arithmetic.",
    "ESS": "(Σ r)²/Σ r² of the unbounded token ratios, as a share of the tokens.",
}
CORRELATION = (
    "The correlation of the two parts is {correlation}. Sizes of parts add up to that of the whole only if it is 0."
)
PICTURES = {
    "acceptance": (
        "Both probabilities, and the tokens that each method leaves alone",
        "Tokens by their probability in the sampler (horizontal) and in the trainer (vertical). A method does not "
        "change tokens between its two lines. Outside a solid line it rejects the token, outside a dashed line it "
        "clips the weight.",
    ),
    "magnified": (
        "The difference, magnified",
        "The same tokens and lines. Horizontal: probability in the sampler. Vertical: the ratio. The outermost rows "
        "contain everything outside the axis.",
    ),
    "parts": (
        "The tails of the two parts",
        "How many tokens differ by at least this much: in all, by the sampler alone, and by the age of the weights "
        "alone.",
    ),
    "tail": (
        "The tail",
        "How many tokens differ by at least this much. A line that falls slowly is a heavy tail. If one colour is "
        "above the other, the mismatch has a direction.",
    ),
    "position": (
        "Along the response",
        "The ratio at each position of the response. A band that widens is an error that builds up. A mean away from 1 "
        "is more than noise. Positions that fewer than five responses reach are left out.",
    ),
    "tokens": (
        "Tokens that add most",
        "Token ids by their share of Σ|log r|. Orange: more likely in the trainer. Blue: more likely in the sampler.",
    ),
    "tokens_mean": (
        "Tokens that differ most",
        "Token ids by their mean |log r|, if they occur at least five times. If a few ids differ much more than the "
        "rest, check their rows of the output head.",
    ),
    "length": (
        "Over the length of the response",
        "One point per response. Independent noise of this size would stay inside the dotted cone. The lines are usual "
        "thresholds of the product and of the mean ratio.",
    ),
    "lag": ("By age of the weights", "Mean |log r| by the age of the weights that sampled, in updates."),
    "turn": ("By turn", "Mean |log r| by the turn of a token, if a tool or another speaker answers in between."),
}
"""(title, caption) per picture."""


DISCARDING = "What discarding answers does to the batch"
DISCARDED = ("kept are answers …", "kept", "change of the mean length", "change of the mean reward")
WITHIN = {
    "product": "with a product of the ratios within 1/2 to 2",
    "geometric mean": "with a geometric mean within ±0.1 %",
}
"""Name in SEQUENCE_METHODS → the answers that it keeps."""
OLDER = "of weights at most {lag} updates old"
DISCARDED_MEANINGS = {
    "kept": "Share of the answers that are kept.",
    "change of the mean length": "Mean length of the kept answers compared with that of all answers, and the interval "
    "of 95 % over prompts.",
    "change of the mean reward": "Mean reward of the kept answers less that of all answers, and its interval.",
}
DISCARDING_IS = (
    "Rules on whole answers reject long answers more often, and old weights may have sampled longer ones. If an "
    "interval excludes 0, the kept answers are not like the batch that was sampled."
)


def relative(change: Estimate) -> str:
    """Return a relative change in percent with its interval."""
    return f"{100 * change.value:+.1f} % [{100 * change.low:+.1f}, {100 * change.high:+.1f}]".replace("-", "−")


def difference(change: Estimate) -> str:
    """Return a difference with its interval."""
    return f"{change.value:+.3f} [{change.low:+.3f}, {change.high:+.3f}]".replace("-", "−")


NO_IDS = "The step has no token ids, so the page cannot show which tokens differ."


ONE_LAG = "All responses of this step were sampled by weights {age} older than those that scored them."
