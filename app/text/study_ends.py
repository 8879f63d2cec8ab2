"""Sentences that join the gradient of one step with the training runs of a study."""

from rlcorr.gradients.bootstrap import Interval
from rlcorr.records.study_ends import FRESH, NOTHING, StudyEnds

KINDS = {
    "token cap": "a cap on token weights",
    "token cap, normalised": "a cap on normalised token weights",
    "token mask": "a band outside which token weights are 0",
    "product cap": "a cap on the weight of the whole sequence",
    "product cap, normalised": "a cap on the normalised weight of the whole sequence",
    "sequences": "rules that reject whole sequences",
    "bad answers": "a rule that rejects only bad answers",
    "tokens": "rules that reject single tokens",
    NOTHING: "no correction",
}
WHERE = "In {steps} training steps of {model} {mismatch}"
OLD, CACHE = "on weights {staleness} updates old", "with a KV cache in 8 bits (e5m2)"
ENDED = "{where}, {kind} ended at {measure} {range}{beside} no correction ({nothing}{fresh})."
PAIR = "{where}, {a} (A) ended at {measure} {range_a}, {b} (B) at {range_b}, and no correction at {nothing}."
MEASURES = {"reward": "a reward of", "accuracy": "a greedy accuracy of"}
STUDY = "(Study `{name}`, on the page Training.)"
STUDY_LINK = "(See [the study {name}]({address}).)"
"""A link, which the app shows instead of `STUDY`."""
ONE = "This difference is {significant} on {seeds} seeds."
SOME = "{which} significant on {seeds} seeds."
CONTRADICTS = "This contradicts the gradient step above: a better step is not always a better training run."
OTHER_WAY = "This points the other way than the gradient step above, but not significantly."
NUMBERS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve")


def of_kind(ends: StudyEnds, kind: str, progress: Interval | None = None) -> str:
    """Return, in Markdown, how training runs with this kind of correction ended.

    `progress` is the progress of the best threshold of such a correction minus that of no correction.
    """
    if kind == NOTHING:
        return ""
    nothing, lowest, highest = (round(x, 2) for x in (ends.lowest(NOTHING), ends.lowest(kind), ends.highest(kind)))
    beside = ", above" if lowest > nothing else ", below" if highest < nothing else ", next to"
    fresh = f"; {ends.highest(FRESH):.2f} with fresh weights" if ends.staleness and FRESH in ends.by_kind else ""
    sentence = ENDED.format(
        where=_where(ends), kind=KINDS[kind], measure=MEASURES[ends.measure], range=_range(ends, kind),
        beside=beside, nothing=f"{nothing:.2f}", fresh=fresh,
    )  # fmt: skip
    return _joined(ends, sentence, (kind, NOTHING), progress)


def of_two(ends: StudyEnds, a: str, b: str, progress: Interval | None) -> str:
    """Return, in Markdown, how training runs with two kinds of corrections ended.

    `progress` is the progress of B minus that of A on the page, if it is known.
    """
    if a == b:
        return of_kind(ends, a)
    if NOTHING in (a, b):
        turned = None if progress is None else Interval(-progress.value, -progress.high, -progress.low)
        return of_kind(ends, b, progress) if a == NOTHING else of_kind(ends, a, turned)
    sentence = PAIR.format(
        where=_where(ends), a=KINDS[a], b=KINDS[b], measure=MEASURES[ends.measure], range_a=_range(ends, a),
        range_b=_range(ends, b), nothing=_range(ends, NOTHING),
    )  # fmt: skip
    return _joined(ends, sentence, (b, a), progress)


def contradiction(ends: StudyEnds, kind: str, other: str, progress: Interval | None) -> str:
    """Return a sentence if the study and the page disagree about which of two kinds is better; else an empty text.

    `progress` is the progress of the first minus that of the other.
    """
    if progress is None or not progress.tells:
        return ""
    low, high = (kind, other) if progress.value > 0 else (other, kind)
    if ends.highest(low) >= ends.lowest(high):
        return ""
    return CONTRADICTS if ends.significant[kind, other] == _pairs(ends, kind, other) else OTHER_WAY


def _joined(ends: StudyEnds, sentence: str, kinds: tuple[str, str], progress: Interval | None) -> str:
    parts = [
        sentence, _significance(ends, *kinds), contradiction(ends, *kinds, progress), STUDY.format(name=ends.name)
    ]  # fmt: skip
    return " ".join(part for part in parts if part)


def _where(ends: StudyEnds) -> str:
    staleness = NUMBERS[ends.staleness] if ends.staleness < len(NUMBERS) else str(ends.staleness)
    mismatch = OLD.format(staleness=staleness) if ends.staleness else CACHE
    return WHERE.format(steps=ends.steps, model=ends.model, mismatch=mismatch)


def _range(ends: StudyEnds, kind: str) -> str:
    low, high = f"{ends.lowest(kind):.2f}", f"{ends.highest(kind):.2f}"
    return low if low == high else f"{low} to {high}"


def _pairs(ends: StudyEnds, kind: str, other: str) -> int:
    return len(ends.by_kind[kind]) * len(ends.by_kind[other])


def _significance(ends: StudyEnds, kind: str, other: str) -> str:
    significant, total = ends.significant[kind, other], _pairs(ends, kind, other)
    if total == 1:
        return ONE.format(significant="significant" if significant else "not significant", seeds=ends.seeds)
    which = f"{significant} of these {total} differences {'is' if significant == 1 else 'are'}"
    if significant in (0, total):
        which = f"All {total} differences are" if significant else f"None of these {total} differences is"
    return SOME.format(which=which, seeds=ends.seeds)
