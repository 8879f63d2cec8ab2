"""Every sentence about how training runs ended. No other file says that one correction ended above another."""

from collections.abc import Callable, Sequence
from dataclasses import astuple

from rlcorr.gradients.bootstrap import Interval
from rlcorr.records.study import Endpoint, Study
from rlcorr.records.study_comparisons import Comparison
from rlcorr.records.study_ends import FRESH, NOTHING, StudyEnds
from text.formatting import plain

KINDS = {
    "token cap": "a cap on token weights",
    "token cap, normalised": "a cap on normalised token weights",
    "token mask": "a band outside which token weights are 0",
    "product cap": "a cap on the weight of the whole answer",
    "product cap, normalised": "a cap on the normalised weight of the whole answer",
    "sequences": "rules that reject whole answers",
    "bad answers": "a rule that rejects only bad answers",
    "tokens": "rules that reject single tokens",
    NOTHING: "no correction",
}
WHERE = "In {steps} training steps of {model} {mismatch}"
OLD, CACHE = "on weights {staleness} updates old", "with a KV cache in 8 bits (e5m2)"
ENDED = "{where}, {kind} ended at {measure} {range}, {side} no correction ({nothing}{fresh})."
PAIR = "{where}, {a} (A) ended at {measure} {range_a}, {b} (B) at {range_b}, and no correction at {nothing}."
MEASURES = {"reward": "a reward of", "accuracy": "a greedy accuracy of"}
STUDY = "(Study `{name}`, on the page Training.)"
STUDY_LINK = "(See [the study {name}]({address}).)"
"""A link, which the app shows instead of `STUDY`."""
ALL_APART, SOME_APART = "{all} significant ({seeds} seeds).", "{count} of these {total} differences {are} significant."
SAME = "{Seeds} seeds cannot tell them apart."
FROM_NOTHING = "{who} significantly from no correction."
CONTRADICTS = "In training {better} ended {higher}. On this one batch the step of {other} is better."
CONDEMNED = (
    "**{kinds} {verb} good on this step, but ended at {measure} {range} in training, below no correction "
    "({nothing}){sure}.**"
)
NUMBERS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve")
Title = Callable[[str], str]
"""Returns what an arm of a study does, in words."""


# --- kinds of corrections, on pages of a gradient step ---


def of_kind(ends: StudyEnds, kind: str, progress: Interval | None = None) -> str:
    """Return, in Markdown, how training runs with this kind of correction ended, and first what they contradict.

    `progress` is the progress of the best threshold of such a correction minus that of no correction.
    """
    if kind == NOTHING:
        return ""
    fresh = f"; {ends.highest(FRESH):.2f} with fresh weights" if ends.staleness and FRESH in ends.by_kind else ""
    sentence = ENDED.format(
        where=_where(ends), kind=KINDS[kind], measure=MEASURES[ends.measure], range=ended_at(ends, kind),
        side=_side(ends, kind, NOTHING), nothing=ended_at(ends, NOTHING), fresh=fresh,
    )  # fmt: skip
    first = contradiction(ends, kind, NOTHING, progress)
    return _joined(first, sentence, _apart(ends, kind, NOTHING), STUDY.format(name=ends.name))


def of_two(ends: StudyEnds, a: str, b: str) -> str:
    """Return, in Markdown, how training runs with two kinds of corrections ended."""
    if a == b or NOTHING in (a, b):
        return of_kind(ends, b if a == NOTHING else a)
    sentence = PAIR.format(
        where=_where(ends), a=KINDS[a], b=KINDS[b], measure=MEASURES[ends.measure], range_a=ended_at(ends, a),
        range_b=ended_at(ends, b), nothing=ended_at(ends, NOTHING),
    )  # fmt: skip
    who = [name for name, kind in (("A", a), ("B", b)) if ends.significant[kind, NOTHING]]
    differ = {0: "Neither differs", 1: f"Only {who[0] if who else ''} differs", 2: "Both differ"}[len(who)]
    between = _of_pair(ends, a, b)
    return _joined(sentence, between, FROM_NOTHING.format(who=differ), STUDY.format(name=ends.name))


def contradiction(
    ends: StudyEnds, kind: str, other: str, progress: Interval | None, names: tuple[str, str] | None = None
) -> str:
    """Return a sentence if the study and the page disagree about which of two kinds is better; else an empty text.

    `progress` is the progress of the first minus that of the other. `names` stand for the two in the sentence.
    """
    if kind == other or progress is None or not progress.tells:
        return ""
    low, high = (kind, other) if progress.value > 0 else (other, kind)
    if _side(ends, low, high) != "below":
        return ""
    called = dict(zip((kind, other), names or (KINDS[kind], KINDS[other]), strict=True))
    is_sure = ends.significant[kind, other] == _pairs(ends, kind, other)
    higher = "significantly higher" if is_sure else "higher, though not significantly"
    return CONTRADICTS.format(better=called[high], other=called[low], higher=higher)


def condemned(ends: StudyEnds, kind: str) -> str:
    """Return, in Markdown, that training runs with this kind of correction ended below those without a correction."""
    kinds, verb = KINDS[kind], "look" if KINDS[kind].startswith("rules") else "looks"
    sure = "" if ends.significant[kind, NOTHING] == _pairs(ends, kind, NOTHING) else ", though not significantly"
    sentence = CONDEMNED.format(
        kinds=kinds[0].upper() + kinds[1:], verb=verb, measure=MEASURES[ends.measure], range=ended_at(ends, kind),
        nothing=ended_at(ends, NOTHING), sure=sure,
    )  # fmt: skip
    return _joined(sentence, STUDY.format(name=ends.name))


def is_contradicted(ends: StudyEnds, kind: str | None) -> bool:
    """Check whether all training runs with this kind of correction ended below those without a correction."""
    return kind is not None and kind in ends.by_kind and kind != NOTHING and _side(ends, kind, NOTHING) == "below"


def ended_at(ends: StudyEnds, kind: str) -> str:
    """Return where the arms of a kind ended, as the page of the study writes it."""
    low, high = f"{ends.lowest(kind):.2f}", f"{ends.highest(kind):.2f}"
    return low if low == high else f"{low} to {high}"


def _joined(*parts: str) -> str:
    return " ".join(part for part in parts if part)


def _where(ends: StudyEnds) -> str:
    mismatch = OLD.format(staleness=_in_words(ends.staleness)) if ends.staleness else CACHE
    return WHERE.format(steps=ends.steps, model=ends.model, mismatch=mismatch)


def _side(ends: StudyEnds, kind: str, other: str) -> str:
    """Return on which side of another kind all arms of a kind ended, with two decimals as on the page."""
    ranges = [(round(ends.lowest(one), 2), round(ends.highest(one), 2)) for one in (kind, other)]
    (low, high), (other_low, other_high) = ranges
    return "above" if low > other_high else "below" if high < other_low else "next to"


def _pairs(ends: StudyEnds, kind: str, other: str) -> int:
    return len(ends.by_kind[kind]) * len(ends.by_kind[other])


def _apart(ends: StudyEnds, kind: str, other: str) -> str:
    """Return whether the arms of two kinds differ significantly."""
    count, total = ends.significant[kind, other], _pairs(ends, kind, other)
    if not count:
        return SAME.format(Seeds=_in_words(ends.seeds).capitalize())
    if count < total:
        return SOME_APART.format(count=count, total=total, are="is" if count == 1 else "are")
    every = "This difference is" if total == 1 else f"Each of these {total} differences is"
    return ALL_APART.format(all=every, seeds=ends.seeds)


def _of_pair(ends: StudyEnds, a: str, b: str) -> str:
    """Return whether A and B differ significantly, by name: three ends are in the sentence before."""
    count, total, side = ends.significant[a, b], _pairs(ends, a, b), _side(ends, a, b)
    if not count:
        return f"{_in_words(ends.seeds).capitalize()} seeds cannot tell A from B."
    if count < total or side == "next to":
        return f"{count} of the {total} differences between A and B {'is' if count == 1 else 'are'} significant."
    first = "A" if len(ends.by_kind[a]) == 1 else f"Each of the {_in_words(len(ends.by_kind[a]))} of A"
    second = "B" if len(ends.by_kind[b]) == 1 else f"each of the {_in_words(len(ends.by_kind[b]))} of B"
    return f"{first} ended significantly {side} {second} ({ends.seeds} seeds)."


def _in_words(count: int) -> str:
    return NUMBERS[count] if count < len(NUMBERS) else str(count)


# --- arms, on the page of the study ---

PROVEN = "{which} proven {direction} than no correction: {names}."
REST, NONE_PROVEN = "{Seeds} seeds cannot decide the rest.", "{Seeds} seeds decide for none of the {all}."
NO_REFERENCE = "No arm of this study is a control, so no difference is claimed."
ONE_ARM = "One control without a mismatch, to compare the other studies with."
GAIN, ACCURACY = "Gain in reward", "Accuracy of the last weights"
PLANNED = "{arm} − {against}: {difference}"
PLANNED_HEADING = "{measure}, as planned before training: {pairs}."
NONE_SIGNIFICANT = "{measure}, as planned before training: no significant difference."
BY_REWARD = "By the reward of the last quarter of the steps, which was not planned: {verdict}"


def verdict(against_nothing: Sequence[Comparison], title: Title) -> str:
    """Return sentences: which corrections are proven better or worse than none, and whether any are left."""
    total, seeds, sentences = len(against_nothing), _in_words(against_nothing[0].seeds).capitalize(), []
    proven = [pair for pair in against_nothing if pair.difference.tells]
    for direction in ("better", "worse"):
        arms = [pair.arm for pair in proven if (pair.difference.value > 0) == (direction == "better")]
        if arms:
            which = f"Only one of {_in_words(total)} is" if len(arms) == 1 < total else f"{len(arms)} of {total} are"
            names = "; ".join(plain(title(arm)) for arm in arms)
            sentences.append(PROVEN.format(which=which, direction=direction, names=names))
    if not proven:
        return NONE_PROVEN.format(Seeds=seeds, all=_in_words(total))
    return _joined(*sentences, REST.format(Seeds=seeds) if len(proven) < total else "")


def measure(endpoint: Endpoint) -> str:
    return GAIN if endpoint.steps else ACCURACY


def study_said(
    study: Study, planned: Sequence[Comparison], against_nothing: Sequence[Comparison], title: Title, arms: int
) -> tuple[str, list[str]]:
    """Return a heading and lines, in Markdown, about a study with so many arms.

    `planned` has the comparisons by the endpoint that was planned; without a plan the reward decides.
    """
    by_reward = verdict(against_nothing, title) if against_nothing else ""
    primary = [pair for pair in planned if study.endpoint and (pair.arm, pair.against) in study.endpoint.primary]
    lines = [_difference(pair, title) + ("" if pair in primary else ", not planned") for pair in planned]
    if study.endpoint is None or not primary:
        return by_reward or (ONE_ARM if arms == 1 else NO_REFERENCE), lines
    if by_reward:
        lines.append(BY_REWARD.format(verdict=by_reward))
    pairs = [
        f"{plain(title(pair.arm))} is {'above' if pair.difference.value > 0 else 'below'} {plain(title(pair.against))}"
        for pair in primary
        if pair.difference.tells
    ]
    heading = PLANNED_HEADING if pairs else NONE_SIGNIFICANT
    return heading.format(measure=measure(study.endpoint), pairs="; ".join(pairs)), lines


def _difference(pair: Comparison, title: Title) -> str:
    value, low, high = (f"{x:+.2f}".replace("-", "\N{MINUS SIGN}") for x in astuple(pair.difference))
    difference = f"{value} ({low} to {high}, {pair.seeds} seeds)" + ("" if pair.difference.tells else ", not decided")
    return PLANNED.format(arm=plain(title(pair.arm)), against=plain(title(pair.against)), difference=difference)
