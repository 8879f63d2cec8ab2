"""Countdown: reach a target with given numbers, each used exactly once. A right answer to `46=3,7,25=` is `3*7+25`."""

import ast
import operator
import random
import re
from fractions import Fraction

NUMBERS = 3
LARGEST_NUMBER = 20
LARGEST_TARGET = 99

LONGEST_ANSWER = 12
"""Characters of a right answer with parentheses around every pair: ((10-11)*12)."""

INSTRUCTION = (
    "Before the = stands a target, after it are numbers. Reach the target with + - * / and parentheses; use each "
    "number exactly once. Answer with the expression, and nothing else. Example: 46=3,7,25= is answered 3*7+25"
)

OPERATORS = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv}


def draw(rng: random.Random) -> tuple[str, str]:
    """Draw a prompt, which begins with the target, and one of its solutions.

    Every intermediate value of the solution is a positive integer.
    """
    while True:
        numbers = [rng.randint(1, LARGEST_NUMBER) for _ in range(NUMBERS)]
        solution = _combined([(str(n), n) for n in numbers], rng)
        if solution is not None and solution[1] <= LARGEST_TARGET:
            return f"{solution[1]}={','.join(map(str, numbers))}=", solution[0].removeprefix("(").removesuffix(")")


def score(prompt: str, response: str) -> float:
    """Score a response: 1 if it reaches the target with each number used exactly once, 0.1 for another value, else 0.

    The 0.1 rewards an expression with the right numbers but a wrong value, as in TinyZero
    (github.com/Jiayi-Pan/TinyZero).
    """
    target, numbers = prompt.removesuffix("=").split("=")
    # Check the numbers before parsing: they are written as in the prompt, so none is huge or starts with a zero.
    if len(response) > 4 * LONGEST_ANSWER or not re.fullmatch(r"[0-9+\-*/()]+", response):
        return 0.0
    if sorted(re.findall(r"\d+", response)) != sorted(numbers.split(",")):
        return 0.0
    try:
        reached = _value(ast.parse(response, mode="eval").body)
    except (SyntaxError, ValueError, ZeroDivisionError):
        return 0.0
    return 1.0 if reached == int(target) else 0.1


def _value(node: ast.expr) -> Fraction:
    """Compute the value of an expression. Raises `ValueError` if it has more than numbers and the four operators.

    Signs, powers and `//` raise it, too.
    """
    if isinstance(node, ast.Constant):
        return Fraction(str(node.value))
    if isinstance(node, ast.BinOp) and type(node.op) in OPERATORS:
        return OPERATORS[type(node.op)](_value(node.left), _value(node.right))
    raise ValueError(f"not a number, nor one of + - * /: {ast.unparse(node)}")


def _combined(terms: list[tuple[str, int]], rng: random.Random) -> tuple[str, int] | None:
    """Combine two random terms until one is left; return None if a value would not be a positive integer.

    A term is an expression in parentheses, and its value.
    """
    while len(terms) > 1:
        rng.shuffle(terms)
        (left, x), (right, y), *others = terms
        sign = rng.choice("+-*/")
        if (sign == "-" and x <= y) or (sign == "/" and x % y):
            return None
        value = {"+": x + y, "-": x - y, "*": x * y, "/": x // y}[sign]
        terms = [(f"({left}{sign}{right})", value), *others]
    return terms[0]
