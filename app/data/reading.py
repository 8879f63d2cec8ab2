"""How the texts of an address are read: each function returns one that takes a text and the values that are known.

A text that is wrong raises `UsageError` with a sentence for the page, and the field keeps its default. `PartlyWrong`
has the value of the part that is right.
"""

import re
from collections.abc import Callable, Collection
from typing import Any

from text import tours

from data import lessons, recorded, studies
from data.configuration import FIRST, Values, bounds, choices, slot_of
from data.options import LAB, START_HIGH, START_LOW, START_USUAL
from data.sketches import BATCH_SIZES
from rlcorr.errors import UsageError, unknown
from rlcorr.figures.canvas import MOST_LINES
from rlcorr.gradients import report
from rlcorr.lab import Experiment
from rlcorr.records.runs import DamagedFile
from rlcorr.records.token_texts import pieces

Read = Callable[[str, Values], Any]
FURTHEST = "Showing the one whose ratio is furthest from 1."
USUAL_BATCH = report.BATCH_SIZES[0]


class PartlyWrong(UsageError):
    """A text of which a part is right."""

    def __init__(self, sentence: str, value: Any) -> None:
        super().__init__(sentence)
        self.value = value


def one_of(options: Collection[str], noun: str, default: str) -> Read:
    """Read one of these names."""

    def read(text: str, _: Values) -> str:
        if text not in options:
            raise UsageError(f"{unknown(noun, text, options)} Showing {default}.")
        return text

    return read


def some_of(options: Callable[[Values], Collection[str]], noun: str, without: str = "Drawn without it.") -> Read:
    """Read names with commas between them."""

    def read(text: str, values: Values) -> list[str]:
        names, allowed = [name for name in text.split(",") if name], options(values)
        right = [name for name in dict.fromkeys(names) if name in allowed]
        if wrong := [name for name in names if name not in allowed]:
            raise PartlyWrong(" ".join(f"{unknown(noun, name, allowed)} {without}" for name in wrong), right)
        return right

    return read


def projector(text: str, _: Values) -> bool:
    if text not in ("0", "1"):
        raise UsageError(f"projector={text!r} is not known; using 0. Known: 0, 1.")
    return text == "1"


def run(text: str, values: Values) -> str:
    all_runs = recorded.all_runs()
    if text in (recorded.USUAL_RUN, *all_runs) or not all_runs:
        return text if all_runs else recorded.USUAL_RUN
    raise UsageError(f"{unknown('run', text, all_runs)} Showing {shown_run({**values, 'run': None})}.")


def shown_run(values: Values) -> str | None:
    """Return the slug of the run that these values show; None if there are no runs."""
    all_runs = recorded.all_runs()
    if not all_runs:
        return None
    slug = values.get("run")
    return slug if slug in all_runs else recorded.default_run(all_runs, values.get("view", "start"))


def step(text: str, values: Values) -> str:
    """Read a step of the run that is shown."""
    slug = shown_run(values)
    steps = recorded.selected(slug, recorded.all_runs()[slug], text).steps if slug else ()
    if text in recorded.step_options(steps):
        return text
    recorded_steps = f"{len(steps)} recorded, {steps[0]} to {steps[-1]}" if steps else "none recorded yet"
    raise UsageError(f"This run has no step {text!r} ({recorded_steps}). Showing the latest.")


def token(text: str, values: Values) -> tuple[int, int] | None:
    """Read ROW.COLUMN, counted from 0."""
    slug = shown_run(values)
    chosen = slug and recorded.selected(slug, recorded.all_runs()[slug], values.get("step", recorded.LATEST))
    if not chosen or chosen.step is None:
        return None
    match = re.fullmatch(r"([0-9]{1,9})\.([0-9]{1,9})", text)
    if match is None:
        raise UsageError(f"token={text} is not a token: it must be ROW.COLUMN, such as 3.0. {FURTHEST}")
    try:
        lengths = [len(row) for row in pieces(recorded.step(chosen.run, chosen.step))]
    except DamagedFile:  # the page says so
        return None
    row, column = int(match[1]), int(match[2])
    if row < len(lengths) and column < lengths[row]:
        return row, column
    of_row = f"; response {row} has {lengths[row]} tokens" if row < len(lengths) else ""
    step = f"it has {len(lengths)} responses{of_row}, all counted from 0"
    raise UsageError(f"token={text} is not in this step: {step}. {FURTHEST}")


def answers(text: str, _: Values) -> int:
    allowed = [str(size) for size in BATCH_SIZES]
    if text not in allowed:
        raise UsageError(f"answers={text!r} is not offered; using {USUAL_BATCH}. Offered: {', '.join(allowed)}.")
    return int(text)


def system(options: Collection[str]) -> Read:
    def read(text: str, _: Values) -> str:
        if text not in options:
            raise UsageError(f"system={text!r} is not known. Known: {', '.join(options)}.")
        return text

    return read


def overlaid(text: str, values: Values) -> list[str]:
    """Read the other runs of the same axes."""
    shown = shown_run(values)
    others = [slug for slug in recorded.all_runs() if slug != shown]
    wrong: list[str] = []
    try:
        right = some_of(lambda _: others, "run")(",".join(slug for slug in text.split(",") if slug != shown), values)
    except PartlyWrong as error:
        right, wrong = error.value, [str(error)]
    if len(right) > MOST_LINES - 1:
        wrong.append(f"Only {MOST_LINES} runs fit into one picture. The others are left out.")
    if wrong:
        raise PartlyWrong(" ".join(wrong), right[: MOST_LINES - 1])
    return right


def first_study(_: Values) -> str:
    return next(iter(studies.all_studies()), "")


def drawn_presets(values: Values) -> list[str]:
    """Return the presets of the study to draw first; none if it is not trained or its file is damaged."""
    try:
        return studies.few(studies.table(values.get("study") or first_study(values)))
    except UsageError:
        return []


def arms(values: Values) -> list[str]:
    """Return the presets of the study; none as above."""
    try:
        outcomes = studies.table(values.get("study") or first_study(values)).outcomes
    except UsageError:
        return []
    return [outcome.preset for outcome in outcomes]


def study(text: str, values: Values) -> str:
    index = studies.all_studies()
    return one_of(index, "study", next(iter(index), ""))(text, values)


def lesson(text: str, _: Values) -> str:
    slugs = [one.slug for one in lessons.lessons()]
    if text not in slugs:
        raise unknown("lesson", text, slugs)
    return text


tour = one_of(tours.TOURS, "tour", "no tour")


def tour_step(text: str, values: Values) -> int:
    count = _steps_of_tour(values)
    if not text.isdecimal() or not 1 <= int(text[:4]) <= count:
        raise UsageError(f"tour_step={text} is not a step of this tour; showing step 1. Allowed: 1 to {count}.")
    return int(text)


def tour_open(text: str, values: Values) -> int:
    """Read the step whose answer is shown; 0 for none."""
    return int(text) if text in map(str, range(_steps_of_tour(values) + 1)) else 0


def tour_done(text: str, values: Values) -> str:
    """Read the digits of the steps that are done, in order, each once."""
    count = _steps_of_tour(values)
    if not all(digit in "123456789"[:count] for digit in text):
        allowed = f"Allowed: digits from 1 to {count}."
        raise UsageError(f"tour_done={text} does not name steps of this tour; no step is ticked. {allowed}")
    return "".join(sorted(set(text)))


def _steps_of_tour(values: Values) -> int:
    tour = tours.TOURS.get(values.get("tour", ""))
    return 1 if tour is None else len(tour.steps)


def own_choice(key: str) -> Callable[[Values], Any]:
    """Return a function that returns the preset's own value of this choice."""
    return lambda values: next(one.value for one in choices(values, slot_of(key)) if one.key == key)


def own_bound(key: str) -> Callable[[Values], float | None]:
    """Return a function that returns the preset's own value of this bound; None if these choices have no such bound."""

    def own_value(values: Values) -> float | None:
        try:
            return next((b.value for b in bounds(values, slot_of(key)) if b.key == key), None)
        except UsageError:  # the choices contradict each other
            return None

    return own_value


def choice(key: str) -> Read:
    """Read a choice of a configuration: one of its options, or several with commas between them."""

    def read(text: str, values: Values) -> Any:
        (of_key,) = [one for one in choices(values, slot_of(key)) if one.key == key]
        names = [name for name in text.split(",") if name] if of_key.several else [text]
        if not all(name in of_key.options for name in names):
            usual = ",".join(of_key.value) if of_key.several else of_key.value
            raise UsageError(f"{key}={text!r} is not known; using {usual!r}. Known: {', '.join(of_key.options)}.")
        return names if of_key.several else text

    return read


def bound(key: str) -> Read:
    """Read a bound of a configuration, which must exist with these choices."""

    def read(text: str, values: Values) -> float:
        b = next((b for b in bounds(values, slot_of(key)) if b.key == key), None)
        if b is None:
            what = "the preset" if slot_of(key) == FIRST else "the preset of B"
            raise UsageError(f"{key}={text} changes nothing: {what} has no such bound.")
        return number(key, text, b.value, b.low, b.high)

    return read


def lab(key: str) -> Read:
    """Read a setting of the Lab. `Experiment` says what it may be."""
    usual = LAB[key]

    def read(text: str, values: Values) -> Any:
        try:
            value: Any = text if isinstance(usual, str) else float(text)
        except ValueError:
            raise UsageError(f"{key}={text!r} is not a number; using {usual:g}.") from None
        if isinstance(usual, int) and value.is_integer():
            value = int(value)
        try:
            Experiment(**{"bound": values.get("bound", Experiment.bound), key: value})
        except UsageError as error:
            raise UsageError(f"{error} Using {usual}.") from error
        return value

    return read


def start_bound(text: str, _: Values) -> float:
    return number("start_bound", text, START_USUAL, START_LOW, START_HIGH)


def listed(key: str, allowed: Collection[float], usual: float) -> Read:
    """Read a number: the nearest of these."""

    def read(text: str, _: Values) -> float:
        value = number(key, text, usual, min(allowed), max(allowed))
        return min(allowed, key=lambda one: abs(one - value))

    return read


def number(key: str, text: str, usual: float, low: float, high: float) -> float:
    """Read a number within its limits."""
    allowed = f"{low:g} to {high:g}"
    try:
        value = float(text)
    except ValueError:
        raise UsageError(f"{key}={text!r} is not a number; using {usual:g}. Allowed: {allowed}.") from None
    if not low <= value <= high:
        raise UsageError(f"{key}={text} is out of range; using {usual:g}. Allowed: {allowed}.")
    return value
