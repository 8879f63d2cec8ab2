"""Friendly checks of exercises: what is wrong is said in words, with the numbers.

An exercise is data: what is asked, spelled out slowly, some calls, and the mistakes that people make. A lesson calls
`check(my_function, EXERCISE)`, as often as the learner likes.
"""

import copy
import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

Answer = Callable[..., Any]
SHOWN = 24
"""Tensors of at most so many numbers are printed whole."""
NOTHING = "Nothing came back: is there a return?"


@dataclass(frozen=True)
class Mistake:
    """A wrong answer that people give, and what to tell them."""

    answer: Answer
    says: str


@dataclass(frozen=True)
class Exercise:
    """What is asked for.

    `expected` is slow and plain, on purpose not how the library does it; `cases` are the arguments of the calls, the
    first with numbers one can hold in the head; `equivalents` are right answers written in another way, for the tests.
    A result is a number, True or False, a text, a tensor, or a tuple or dict of these. `part` picks what of it is
    compared.
    """

    expected: Answer
    cases: tuple[tuple[Any, ...], ...]
    mistakes: tuple[Mistake, ...]
    equivalents: tuple[Answer, ...]
    tolerance: float = 1e-6
    part: Callable[[Any], Any] = lambda result: result


def check(answer: Answer, exercise: Exercise) -> None:
    """Print "Right.", or what differs."""
    print(problem(answer, exercise) or "Right.")


def problem(answer: Answer, exercise: Exercise) -> str | None:
    """What is wrong with an answer, None if nothing is. Whatever the answer raises itself comes through."""
    for number, arguments in enumerate(exercise.cases, 1):
        try:
            words = _wrong(answer, exercise, arguments)
        except NotImplementedError as not_yet:
            return f"Not yet: {not_yet}"
        if words == NOTHING:
            return words
        if words is not None:
            where = f"In call {number} of {len(exercise.cases)}{_inputs(exercise.expected, arguments)}"
            words = words.removeprefix("\n")  # numbers begin on a line of their own
            return f"{_named_mistake(answer, exercise, number)}{where}{words}"
    return None


def _wrong(answer: Answer, exercise: Exercise, arguments: tuple[Any, ...]) -> str | None:
    """What is wrong in one call."""
    given = copy.deepcopy(arguments)
    got = answer(*given)
    if got is None:
        return NOTHING
    if difference(given, arguments) is not None:
        return "your function changed what it was given. Make a new tensor instead."
    return difference(exercise.part(got), _part(exercise.expected, exercise, arguments), exercise.tolerance)


def _named_mistake(answer: Answer, exercise: Exercise, calls: int) -> str:
    """What is said of the mistake that gives what this answer gives in the first `calls` calls; of several, the one
    that goes on to give it in most of the others."""
    alike = [m for m in exercise.mistakes if _same(answer, m.answer, exercise, exercise.cases[:calls]) == calls]
    if len(alike) > 1:
        alike.sort(key=lambda m: -_same(answer, m.answer, exercise, exercise.cases[calls:]))
    return f"{alike[0].says}\n" if alike else ""


def _same(one: Answer, other: Answer, exercise: Exercise, cases: tuple[tuple[Any, ...], ...]) -> int:
    """In how many calls both give the same."""
    pairs = [[_part(f, exercise, arguments) for f in (one, other)] for arguments in cases]
    return sum(difference(mine, theirs, exercise.tolerance) is None for mine, theirs in pairs)


def _part(answer: Answer, exercise: Exercise, arguments: tuple[Any, ...]) -> Any:
    return exercise.part(answer(*copy.deepcopy(arguments)))


def _inputs(expected: Answer, arguments: tuple[Any, ...]) -> str:
    """The call's arguments, a line each, and what comes before the words."""
    names = list(inspect.signature(expected).parameters)
    width = max((len(name) for name in names), default=0)
    lines = [f"\n  {name:{width}} = {_value(x)}" for name, x in zip(names, arguments, strict=False)]
    return f", with{''.join(lines)}\n" if lines else ": "


def _value(x: Any) -> str:
    return _spelled(x) if isinstance(x, Tensor) and x.numel() <= SHOWN else _short(x)


def difference(got: Any, wanted: Any, tolerance: float = 0.0) -> str | None:
    """The first difference between two results, in words. Numbers may differ by `tolerance` · max(1, |wanted|); nan
    equals nan."""
    if isinstance(wanted, dict):
        if not isinstance(got, dict) or set(got) != set(wanted):
            return f"expected a dict with {sorted(wanted)}; yours is {_short(got)}."
        return _first((f"[{key!r}]", difference(got[key], value, tolerance)) for key, value in wanted.items())
    if isinstance(wanted, tuple | list):
        if not isinstance(got, tuple | list) or len(got) != len(wanted):
            return f"expected {len(wanted)} things, one after the other; yours is {_short(got)}."
        return _first((f"[{n}]", difference(*pair, tolerance)) for n, pair in enumerate(zip(got, wanted, strict=True)))
    if isinstance(wanted, Tensor | float | int):
        return _numbers(got, torch.as_tensor(wanted), tolerance)
    return None if got == wanted else f"yours is {got!r}, expected {wanted!r}."


def _first(parts: Iterator[tuple[str, str | None]]) -> str | None:
    return next((f"at {place}, {words}" for place, words in parts if words is not None), None)


def _numbers(got: Any, wanted: Tensor, tolerance: float) -> str | None:
    if not isinstance(got, Tensor | float | int):
        return f"expected {'a number' if wanted.ndim == 0 else 'a tensor'}; yours is {_short(got)}."
    got = torch.as_tensor(got).detach()
    if got.shape != wanted.shape:
        return f"the shape must be {tuple(wanted.shape)}; yours is {tuple(got.shape)}."
    if (got.dtype == torch.bool) != (wanted.dtype == torch.bool):
        return f"expected {'truths' if wanted.dtype == torch.bool else 'numbers'}; yours are {got.dtype}."
    mine, right = got.double(), wanted.detach().double()
    apart = ~torch.isclose(mine, right, rtol=0.0, atol=0.0, equal_nan=True)
    apart &= ~((mine - right).abs() <= tolerance * right.abs().clamp(min=1.0))
    if not apart.any():
        return None
    return f"{_hint(mine, right, tolerance)}{_places(got, wanted, apart)}"


def _hint(got: Tensor, wanted: Tensor, tolerance: float) -> str:
    """What a wrong tensor has to do with the right one, where that is simple."""
    if (got.isnan() & ~wanted.isnan()).any():
        return "nan leaked in: padding may hold anything, so use the mask. "
    for factor, says in ((-wanted, "the sign is turned. "), (1 / wanted, "upside down: yours is 1/x of it. ")):
        if torch.allclose(got, factor, rtol=tolerance, atol=tolerance):
            return says
    ratios = (got / wanted)[wanted != 0]
    zeros_stay = not got[wanted == 0].any()
    if len(ratios) > 1 and zeros_stay and ratios[0].isfinite() and torch.allclose(ratios, ratios[0], rtol=1e-6):
        factor = f"{ratios[0]:.4g}"
        return "" if factor in ("0", "1") else f"yours is {factor} times what is expected. "
    return ""


def _places(got: Tensor, wanted: Tensor, apart: Tensor) -> str:
    if got.ndim == 0:
        return f"yours is {_spelled(got)}, expected {_spelled(wanted)}."
    if got.numel() <= SHOWN:
        return f"\n  yours    {_spelled(got)}\n  expected {_spelled(wanted)}"
    place = tuple(apart.nonzero()[0].tolist())
    return (
        f"{int(apart.sum()):,} of {got.numel():,} values differ; the first, at {list(place)}, "
        f"is {_spelled(got[place])}, expected {_spelled(wanted[place])}."
    )


def _spelled(x: Tensor) -> str:
    """Nested lists with six significant digits."""
    if x.ndim:
        return f"[{', '.join(map(_spelled, x))}]"
    value = x.item()
    return str(value) if isinstance(value, bool | int) else f"{value:.6g}"


def _short(x: Any) -> str:
    return f"{x!r:.60}" if not isinstance(x, Tensor) else f"a tensor of shape {tuple(x.shape)}"
