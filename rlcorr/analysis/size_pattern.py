"""Patterns that only the size of a gap decides, by comparison with measured gaps."""

from dataclasses import replace
from typing import Literal

from rlcorr.analysis.log_prob_pairs import Tokens, mismatch_numbers
from rlcorr.analysis.placement import range_text
from rlcorr.analysis.published import (
    SPREAD,
    WORDS,
    CauseMatch,
    KnownCause,
    largest_rounding,
    match_cause,
    matching_causes,
    rounding,
)
from rlcorr.analysis.symptoms import Pattern, Symptom, listed, percent, short

CLEAN_K3 = 1e-7
"""The largest k3 of a clean batch, in which only the order of float32 sums differs. Measured between engine and trainer
on a CPU: 3e-13 (1.3 million parameters) and 3.6e-11 (SmolLM2-135M)."""
FEW = 200
"""Number of tokens below which a cut may take so little that it looks like rounding: top-p 0.95 did so in 7 of 100
draws of 100 tokens, and in none of 200 (`make bench ARGS=confusion`)."""
Family = Literal["16 bits", "fewer bits", "old weights", "hidden updates", "unmeasured"]
"""Kinds of causes that a gap of some size may have on a model that was not measured. `fewer bits`: a number format of 8
or 4 bits; `unmeasured`: a bug, other texts on the two sides, or a format that nobody has measured."""
HALF = 0.5
"""If 1 % of the tokens cause more than this share of k3, the sentence about precision mentions it. It decides nothing:
mixtures of experts in bfloat16 have such tails."""


def size(tokens: Tokens) -> Symptom:
    """Compare the size of the mismatch with measured gaps, see `published.toml`. Only k3 counts.

        clean            at most `CLEAN_K3`
        precision        at most what was measured for rounding to bfloat16
        undecided        more, but at most what the coarsest rounding makes: several causes make gaps of this size
        beyond rounding  more than any measured rounding makes

    The strength is the distance of k3 from the bound b, of float32 or of bfloat16: 1 − k3/b inside, 1 − b/k3 outside.
    """
    symptom = _by_size(mismatch_numbers(tokens))
    if len(tokens.old) >= FEW or symptom.pattern == "clean":
        return symptom
    return replace(symptom, sentence=f"{symptom.sentence} {len(tokens.old)} tokens are too few to see a cut by top-p.")


def _by_size(numbers: dict[str, float]) -> Symptom:
    gap, bound = numbers["k3"], rounding("bfloat16")[1]
    pattern, _ = verdict_on(gap)
    if pattern == "clean":
        sentence = f"Clean: k3 is {short(gap)}, no more than another order of sums in float32 makes."
        return Symptom(pattern, sentence, numbers, 1 - gap / CLEAN_K3)
    if pattern == "precision":
        return Symptom(pattern, _precision(numbers), numbers, 1 - gap / bound)
    sentence = _undecided(numbers) if pattern == "undecided" else _beyond(numbers)
    return Symptom(pattern, sentence, numbers, 1 - bound / gap)


def verdict_on(gap: float) -> tuple[Pattern, tuple[KnownCause, ...]]:
    """Return the pattern of a k3 of this size, and the causes that its sentence names.

    >>> verdict_on(1e-9), verdict_on(3.0)
    (('clean', ()), ('beyond rounding', ()))
    """
    if gap <= CLEAN_K3:
        return "clean", ()
    if gap <= rounding("bfloat16")[1]:
        return "precision", tuple(match.cause for match in _formats(gap))
    if gap <= largest_rounding().high:
        return "undecided", tuple(match.cause for match in matching_causes(gap))
    return "beyond rounding", ()


def families_of(gap: float) -> tuple[Family, ...]:
    """Return the kinds of causes that the sentence about a k3 of this size leaves open.

    They must hold for a model that no row of `published.toml` has: an 8-bit cache has made a k3 of 0.0008 on one model
    and of 0.038 on another (`make bench ARGS=diagnosis` leaves out one model after the other). So only the border of 16
    bits is used, which has been measured on many models, and a batch may exceed by a factor of `SPREAD`; which of the
    others it is, the size does not tell.

    >>> families_of(1e-9), families_of(1e-3)
    ((), ('16 bits', 'fewer bits'))
    """
    pattern, _ = verdict_on(gap)
    if pattern == "clean":
        return ()
    if pattern == "precision":
        return ("16 bits", "fewer bits") if gap > rounding("float16")[1] else ("16 bits",)
    if pattern == "beyond rounding":
        return "fewer bits", "old weights", "hidden updates", "unmeasured"
    near: tuple[Family, ...] = ("16 bits",) if gap <= SPREAD * rounding("bfloat16")[1] else ()
    return *near, "fewer bits", "old weights", "hidden updates"


def _precision(numbers: dict[str, float]) -> str:
    """Write the sentence about a gap of the size of rounding to 16 bits."""
    gap = numbers["k3"]
    matches = _formats(gap)
    ranges = " and ".join(f"{WORDS[match.cause]} ({range_text((match.low, match.high))})" for match in matches)
    example = matches[-1]
    sentence = f"Looks like precision: k3 is {short(gap)}. Gaps of this size were measured with {ranges}, for example "
    sentence += f"{range_text(example.example_range)} on {example.example.model}. The logits differ by "
    sentence += f"{short(numbers['logit_noise'])} in both directions: {percent(numbers['share_above_one'])} of the "
    sentence += "ratios are above 1."
    if "fewer bits" in families_of(gap):
        sentence += " On another model 8 bits may make as little."
    return f"{sentence} {_tail(numbers)}" if numbers["worst_share"] > HALF else sentence


def _formats(gap: float) -> list[CauseMatch]:
    """Return the 16-bit formats that were measured to make gaps of this size or larger ones."""
    return [match for match in (match_cause("float16", gap), match_cause("bfloat16", gap)) if gap <= match.high]


def _undecided(numbers: dict[str, float]) -> str:
    """Write the sentence about a gap that several causes can make, and how to find out which one it is."""
    matches = matching_causes(numbers["k3"])
    causes = [f"{WORDS[match.cause]} ({range_text((match.low, match.high))})" for match in matches]
    most, near = short(rounding("bfloat16")[1]), "16 bits" in families_of(numbers["k3"])
    return (
        f"Undecided: k3 is {short(numbers['k3'])}. Rounding to 16 bits made at most {most} on the models that were "
        f"measured{', and may be this on another one' if near else ''}. Fewer bits make more, and so do weights a few "
        f"updates old, or updates that the engine's format rounds away. Gaps of this size were measured with "
        f"{listed(causes)}; on another model each of them may be larger or smaller, and the log-probs do not show "
        f"which one it is. Measure again right after a weight sync: a gap from old weights disappears. Measure with "
        f"the engine in float32: a gap from its rounding disappears. {_tail(numbers)}"
    )


def _beyond(numbers: dict[str, float]) -> str:
    """Write the sentence about a gap that is larger than any measured rounding makes."""
    coarsest = largest_rounding()
    return (
        f"Beyond rounding: k3 is {short(numbers['k3'])}, and the coarsest measured rounding makes at most "
        f"{short(coarsest.high)} ({WORDS[coarsest.cause]}). Causes of such gaps are another prompt or chat template, "
        f"much older weights, a bug, or a coarser format or a model that was not measured. Compare the token ids of "
        f"both sides, and measure again right after a weight sync. {_tail(numbers)}"
    )


def _tail(numbers: dict[str, float]) -> str:
    return f"1 % of the tokens cause {percent(numbers['worst_share'])} of k3."
