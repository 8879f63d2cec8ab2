"""Checks of a learner's answers to exercises. A message explains in words, and with numbers, what is wrong.

An exercise is data: a simple reference answer, some calls, and common mistakes. A lesson calls
`check(my_function, EXERCISE)` as often as the learner likes.
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
"""Tensors with at most this many numbers are printed in full."""
SHAPES = "must match the size of tensor"
"""Part of torch's message about two tensors that do not fit."""
RIGHT = "right"
"""The verdict of an exercise that grades an answer in words. Another verdict is the reason why it is wrong."""
NOTHING = "Nothing came back: is there a return?"
PADDED = (
    "there is a nan. Padding may contain anything: select real tokens with the mask. Multiplying by it is not enough, "
    "because nan times 0 is nan. "
)
DIVIDED = "there is a nan, as from 0 divided by 0. "


@dataclass(frozen=True)
class Exercise:
    """An exercise: a reference answer, and how other answers are checked against it.

    A result is a number, True or False, a text, a tensor, or a tuple or dict of these.
    """

    expected: Answer
    """The reference: slow and simple, and on purpose not the library's code."""
    cases: tuple[tuple[Any, ...], ...]
    """The arguments of each call. Those of the first call are small numbers for mental arithmetic."""
    mistakes: tuple[tuple[Answer, str], ...]
    """A row per common wrong answer: a function that gives it, and the message about it."""
    tolerance: float = 1e-6
    part: Callable[[Any], Any] = lambda result: result
    """Returns the part of a result that is compared."""


def check(answer: Answer, exercise: Exercise) -> None:
    """Print "Right.", or what is wrong."""
    print(problem(answer, exercise) or "Right.")


def problem(answer: Answer, exercise: Exercise) -> str | None:
    """Return what is wrong with an answer, or None if nothing is.

    An error that the answer raises is not caught, except NotImplementedError and torch's error about two shapes.
    """
    for index, arguments in enumerate(exercise.cases, 1):
        try:
            words = _wrong(answer, exercise, arguments)
        except NotImplementedError as not_yet:
            return f"Not yet: {not_yet}"
        except RuntimeError as error:
            if SHAPES not in str(error):
                raise
            inputs = _inputs(answer, exercise.expected, arguments)
            return f"In call {index} of {len(exercise.cases)}{inputs}two shapes do not fit, see [:, None]: {error}"
        if words == NOTHING:
            return words
        if words is not None:
            named = _named_mistake(answer, exercise, index - 1)
            named = named or _relation(answer, exercise, index - 1) or _constant(answer, exercise)
            intro = f"In call {index} of {len(exercise.cases)}{_inputs(answer, exercise.expected, arguments)}"
            words = words.removeprefix("\n")  # `intro` ends with a line break already
            return f"{named}{intro}{words}"
    return None


def _wrong(answer: Answer, exercise: Exercise, arguments: tuple[Any, ...]) -> str | None:
    """Return what is wrong in one call, or None."""
    inputs = copy.deepcopy(arguments)
    got = answer(*inputs)
    if got is None:
        return NOTHING
    if difference(inputs, arguments) is not None:
        return "your function changed its input. Make a new tensor instead."
    masked = any(isinstance(x, Tensor) and x.dtype == torch.bool for x in arguments)
    wanted = _part(exercise.expected, exercise, arguments)
    return difference(exercise.part(got), wanted, exercise.tolerance, masked=masked)


def _named_mistake(answer: Answer, exercise: Exercise, failed: int) -> str:
    """Return the message of the mistake that an answer makes, or "". `failed` counts the calls before the wrong one.

    The answer must have the mistake's result in every call in which the mistake differs from the truth, of which
    the failed one must be one. Of several such mistakes, take the one that differs from the truth in most calls.
    """
    truths: dict[int, Any] = {}
    mine: dict[int, Any] = {failed: _tried(answer, exercise, exercise.cases[failed])}
    best, most = "", 0
    for mistake, message in exercise.mistakes:
        if not _same(mine[failed], _tried(mistake, exercise, exercise.cases[failed]), exercise):
            continue
        truths = truths or {n: _part(exercise.expected, exercise, case) for n, case in enumerate(exercise.cases)}
        results = [_tried(mistake, exercise, arguments) for arguments in exercise.cases]
        wrong = [n for n, result in enumerate(results) if not _same(result, truths[n], exercise)]
        mine |= {n: _tried(answer, exercise, exercise.cases[n]) for n in wrong if n not in mine}
        if len(wrong) > most and all(_same(mine[n], results[n], exercise) for n in wrong):
            best, most = f"{message}\n", len(wrong)
    return best


def _relation(answer: Answer, exercise: Exercise, failed: int) -> str:
    """Return how the wrong results are related to the right ones, or "".

    A relation that only some of the wrong calls have is chance. `failed` counts the calls before the first wrong one.
    """
    hints = set[str]()
    for arguments in exercise.cases[failed:]:
        got, wanted = _tried(answer, exercise, arguments), _part(exercise.expected, exercise, arguments)
        if not _same(got, wanted, exercise):
            hints.add(_hint(got, wanted, exercise.tolerance))
    return "".join(f"{hint}\n" for hint in hints if hint and len(hints) == 1)


def _constant(answer: Answer, exercise: Exercise) -> str:
    """Return that an answer ignores its arguments, if it always has the same result, else ""."""
    mine, truths = ([_tried(one, exercise, case) for case in exercise.cases] for one in (answer, exercise.expected))
    ignores = not all(_same(x, truths[0], exercise) for x in truths) and all(_same(x, mine[0], exercise) for x in mine)
    return "Your result is the same in every call.\n" if ignores else ""


def _tried(answer: Answer, exercise: Exercise, arguments: tuple[Any, ...]) -> Any:
    """Return the compared part of a result, or an error that another call than the failed one raises."""
    try:
        return _part(answer, exercise, arguments)
    except (ArithmeticError, LookupError, RuntimeError, TypeError, ValueError) as error:
        return str(error)


def _same(one: Any, other: Any, exercise: Exercise) -> bool:
    return difference(one, other, exercise.tolerance) is None


def _part(answer: Answer, exercise: Exercise, arguments: tuple[Any, ...]) -> Any:
    return exercise.part(answer(*copy.deepcopy(arguments)))


def _inputs(answer: Answer, expected: Answer, arguments: tuple[Any, ...]) -> str:
    """Return the call's arguments, one per line, as the text between "In call 1 of 2" and the message.

    They have the learner's names, or those of the reference if the answer does not name them.
    """
    names = next(filter(None, (_names(function, len(arguments)) for function in (answer, expected))), [])
    width = max((len(name) for name in names), default=0)
    lines = [f"\n  {name:{width}} = {_value(x)}" for name, x in zip(names, arguments, strict=False)]
    return f", with{''.join(lines)}\n" if lines else ": "


def _names(function: Answer, count: int) -> list[str]:
    """Return the names of the first `count` parameters, or [] for built-in functions and `*arguments`."""
    try:
        names = list(inspect.signature(function).parameters)[:count]
    except ValueError:  # a built-in function has no signature
        return []
    return names if len(names) == count else []


def _value(x: Any) -> str:
    return _spelled(x) if isinstance(x, Tensor) and x.numel() <= SHOWN else _short(x)


def _hint(mine: Any, right: Any, tolerance: float) -> str:
    """Return how the first wrong number or tensor of a result is related to the right one, if that is simple.

    Else return "".
    """
    if isinstance(right, dict):
        mine, right = [mine[key] for key in right if isinstance(mine, dict) and key in mine], [*right.values()]
    if isinstance(right, tuple | list):
        pairs = zip(mine, right, strict=False) if isinstance(mine, tuple | list) else ()
        return next((_hint(*pair, tolerance) for pair in pairs if difference(*pair, tolerance) is not None), "")
    if not isinstance(mine, Tensor | float | int) or not isinstance(right, Tensor | float | int):
        return ""
    got, wanted = torch.as_tensor(mine).detach().double(), torch.as_tensor(right).detach().double()
    if got.shape != wanted.shape:
        return ""
    hints = (
        (-wanted, "The sign is wrong."),
        (1 / wanted, "Inverted: yours is 1/x of what is expected."),
    )
    of_fractions = (
        (wanted.log(), "Yours is the logarithm of what is expected."),
        (wanted.exp(), "What is expected is the logarithm of yours."),
        (wanted.square(), "What is expected is the square root of yours."),
        (wanted.sqrt(), "Yours is the square root of what is expected."),
        (1 - wanted, "Yours is 1 minus what is expected."),
    )
    integers = bool((wanted == wanted.round()).all())  # among small integers such a relation is chance
    for related, hint in hints if integers else hints + of_fractions:
        if torch.allclose(got, related, rtol=tolerance, atol=tolerance):
            return hint
    ratios = (got / wanted)[wanted != 0]
    zeros_stay = not got[wanted == 0].any()
    if len(ratios) > 1 and zeros_stay and ratios[0].isfinite() and torch.allclose(ratios, ratios[0], rtol=1e-6):
        factor = f"{ratios[0]:.4g}"
        return "" if factor in ("0", "1") else f"Yours is {factor} times what is expected."
    return ""


def difference(got: Any, wanted: Any, tolerance: float = 0.0, *, masked: bool = True) -> str | None:
    """Describe the first difference between two results, or return None if there is none.

    Numbers may differ by `tolerance` · max(1, |wanted|). NaN equals NaN. With `masked`, a NaN is explained by padding.
    """
    if isinstance(wanted, dict):
        if not isinstance(got, dict) or set(got) != set(wanted):
            return f"expected a dict with {sorted(wanted)}; yours is {_short(got)}."
        return _first(
            (f"[{key!r}]", difference(got[key], value, tolerance, masked=masked)) for key, value in wanted.items()
        )
    if isinstance(wanted, tuple | list):
        if not isinstance(got, tuple | list) or len(got) != len(wanted):
            return f"expected a tuple or list of {len(wanted)} results; yours is {_short(got)}."
        pairs = enumerate(zip(got, wanted, strict=True))
        return _first((f"[{index}]", difference(*pair, tolerance, masked=masked)) for index, pair in pairs)
    if isinstance(wanted, Tensor | float | int):
        return _numbers(got, torch.as_tensor(wanted), tolerance, masked)
    if got == wanted:
        return None
    return str(got) if wanted == RIGHT else f"yours is {got!r}, expected {wanted!r}."


def _first(parts: Iterator[tuple[str, str | None]]) -> str | None:
    return next((f"at {key}, {words}" for key, words in parts if words is not None), None)


def _numbers(got: Any, wanted: Tensor, tolerance: float, masked: bool) -> str | None:
    if not isinstance(got, Tensor | float | int):
        return f"expected {'a number' if wanted.ndim == 0 else 'a tensor'}; yours is {_short(got)}."
    got = torch.as_tensor(got).detach()
    if got.shape != wanted.shape:
        return f"the shape must be {tuple(wanted.shape)}; yours is {tuple(got.shape)}."
    if (got.dtype == torch.bool) != (wanted.dtype == torch.bool):
        return f"expected {'True or False' if wanted.dtype == torch.bool else 'numbers'}; yours are {got.dtype}."
    mine, right = got.double(), wanted.detach().double()
    differs = ~torch.isclose(mine, right, rtol=0.0, atol=0.0, equal_nan=True)
    differs &= ~((mine - right).abs() <= tolerance * right.abs().clamp(min=1.0))
    if not differs.any():
        return None
    leaked = bool((mine.isnan() & ~right.isnan()).any())
    return f"{(PADDED if masked else DIVIDED) if leaked else ''}{_values(got, wanted, differs)}"


def _values(got: Tensor, wanted: Tensor, differs: Tensor) -> str:
    if got.ndim == 0:
        return f"yours is {_spelled(got)}, expected {_spelled(wanted)}."
    if got.numel() <= SHOWN:
        return f"\n  yours    {_spelled(got)}\n  expected {_spelled(wanted)}"
    index = tuple(differs.nonzero()[0].tolist())
    return (
        f"{int(differs.sum()):,} of {got.numel():,} values differ; the first, at {list(index)}, "
        f"is {_spelled(got[index])}, expected {_spelled(wanted[index])}."
    )


def _spelled(x: Tensor) -> str:
    """Write a tensor as nested lists with six significant digits."""
    if x.ndim:
        return f"[{', '.join(map(_spelled, x))}]"
    value = x.item()
    return str(value) if isinstance(value, bool | int) else f"{value:.6g}"


def _short(x: Any) -> str:
    return f"{x!r:.60}" if not isinstance(x, Tensor) else f"a tensor of shape {tuple(x.shape)}"
