"""`make mutate`: do the tests notice a changed sign, bound, mask, denominator or constant of the library?

    make mutate                                every module of TESTS, every change
    make mutate ARGS="masked kl"               only these modules
    make mutate ARGS="--sample 40 --seed 1"    at most 40 random changes per module

One mutant is one changed expression. Each runs in a process of its own, forked from this one before rlcorr is
imported, against the tests of its module only, up to the first failure. A mutant that a test fails on, or that runs
into the time limit, is noticed; the others survive. Survivors known to be harmless stand, with the reason, in
accepted.toml. They still count as survivors; exit status 1 below 95 % noticed in any module.
"""

import argparse
import ast
import copy
import os
import random
import signal
import sys
import time
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import CodeType
from typing import TypeVar

os.environ |= {"OMP_NUM_THREADS": "1", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}

# Not used here, but slow to import: loaded once, they are there in every child. Nothing of rlcorr may be among them.
import hypothesis
import pyarrow.parquet  # noqa: F401
import pytest
import safetensors.torch  # noqa: F401
import torch  # noqa: F401

ROOT = Path(__file__).resolve().parent.parent.parent
ACCEPTED = ROOT / "tests" / "mutants" / "accepted.toml"
ENOUGH, WORKERS, SHORTEST_LIMIT = 0.95, 2, 60  # of all mutants, processes, seconds
SURVIVED = (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED)

# Which test files concern a module, the quickest first.
TESTS = {
    "losses.advantages": ["losses/advantages"],
    "losses.aggregation": ["losses/kl_terms", "measuring/microbatch_metrics", "losses/objective"],
    "config": ["config"],
    "correction": ["correction_golden", "correction"],
    "measuring.measure": ["measuring/measure"],
    "losses.kl": ["losses/kl", "losses/kl_terms"],
    "losses.per_token": [
        "losses/per_token",
        "losses/extreme_batches",
        "losses/policy_losses",
        "losses/objective_golden",
        "losses/objective",
    ],
    "masked": ["masked"],
    "measuring.moments": ["masked", "measuring/measure"],
    "measuring.metric_definitions": ["measuring/metrics", "measuring/measure"],
    "losses.objective": [
        "losses/kl_terms",
        "measuring/microbatch_metrics",
        "losses/objective_golden",
        "losses/objective",
    ],
    "presets": ["presets/presets"],
    "ratios": ["ratios", "losses/kl", "correction_golden"],
    "measuring.metrics": ["measuring/metrics", "measuring/measure"],
    "rules": ["config", "correction_golden", "correction"],
    "errors": ["config"],
    "analysis.bound_curve": ["analysis/bound_curve"],
    "records.runs": ["records/runs", "records/verify"],
    "systems.mapping.keys": ["systems/keys"],
    "systems.pasted": ["systems/pasted"],
    "systems.skyrl": ["systems/skyrl"],
    "systems.verl.config": ["systems/verl"],
}

# --- what is changed ---

ARITHMETIC = {ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult}
ARITHMETIC |= {ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd, ast.And: ast.Or, ast.Or: ast.And}
COMPARISONS = {ast.Lt: [ast.LtE, ast.Gt], ast.LtE: [ast.Lt, ast.GtE], ast.Gt: [ast.GtE, ast.Lt]}
COMPARISONS |= {ast.GtE: [ast.Gt, ast.LtE], ast.Eq: [ast.NotEq], ast.NotEq: [ast.Eq]}
COMPARISONS |= {ast.Is: [ast.IsNot], ast.IsNot: [ast.Is], ast.In: [ast.NotIn], ast.NotIn: [ast.In]}
OPPOSITES = ["min max", "amin amax", "minimum maximum", "any all", "mean sum", "masked_mean masked_sum"]
OPPOSITES += ["masked_min masked_max", "smallest largest", "keep mask"]
SWAPS = {a: b for pair in OPPOSITES for a, b in (pair.split(), pair.split()[::-1])}

# Types, messages and checks for the type checker: nothing there is computed with.
SKIPPED_FIELDS = {"annotation", "returns", "decorator_list"}
SKIPPED = (ast.Import, ast.ImportFrom, ast.Raise, ast.Assert, ast.JoinedStr)


def changed(node: ast.expr, names: set[str]) -> Iterator[ast.expr]:
    """The expressions to put in the place of this one. `names` are those that are known where it stands."""
    match node:
        case ast.UnaryOp(op=ast.USub() | ast.Invert() | ast.Not(), operand=operand):
            yield operand
        case ast.BinOp(left=left, op=op, right=right):
            yield from changed_operation(left, op, right)
        case ast.BoolOp(op=op, values=values):
            yield ast.BoolOp(ARITHMETIC[type(op)](), values)
        case ast.Compare(left=left, ops=ops, comparators=others):
            for i, op in enumerate(ops):
                for other in COMPARISONS[type(op)]:
                    yield ast.Compare(left, [*ops[:i], other(), *ops[i + 1 :]], others)
        case ast.Constant(value=bool(value)):
            yield ast.Constant(not value)
        case ast.Constant(value=int(value)):
            yield ast.Constant(value + 1)
        case ast.Constant(value=float(value)):
            yield ast.Constant(float(f"{value * 1.1 or 0.1:.12g}"))
        case ast.Call():
            yield from changed_call(node)
        case ast.Attribute(value=value, attr=name) if name in SWAPS:
            yield ast.Attribute(value, SWAPS[name], ast.Load())
        case ast.Name(id=name, ctx=ast.Load()) if SWAPS.get(name) in names:
            yield ast.Name(SWAPS[name], ast.Load())


def changed_operation(left: ast.expr, op: ast.operator, right: ast.expr) -> Iterator[ast.expr]:
    if type(op) in ARITHMETIC:
        yield ast.BinOp(left, ARITHMETIC[type(op)](), right)
    if isinstance(op, ast.Div):
        yield left
        if not isinstance(right, ast.Constant):  # a constant is changed by itself
            yield ast.BinOp(left, op, ast.BinOp(right, ast.Add(), ast.Constant(1)))
    if isinstance(op, ast.BitAnd) and not (isinstance(right, ast.UnaryOp) and isinstance(right.op, ast.Invert)):
        yield ast.BinOp(left, op, ast.UnaryOp(ast.Invert(), right))


def changed_call(call: ast.Call) -> Iterator[ast.expr]:
    match call:
        case ast.Call(func=ast.Attribute(attr="clamp"), args=[low, high]):
            for bounds in ([high, low], [ast.Constant(None), high], [low, ast.Constant(None)]):
                yield ast.Call(call.func, bounds, call.keywords)
        case ast.Call(func=ast.Attribute(value=value, attr="clamp"), keywords=[ast.keyword(arg=side, value=bound)]):
            yield value
            yield ast.Call(call.func, call.args, [ast.keyword(SWAPS[str(side)], bound)])
        case ast.Call(func=ast.Attribute(attr="where"), args=[condition, yes, no]):
            yield ast.Call(call.func, [condition, no, yes], call.keywords)


# --- where ---

Tree = TypeVar("Tree", bound=ast.AST)


@dataclass(frozen=True)
class Mutant:
    module: str
    tree: ast.Module
    function: str
    shown: ast.AST
    """The change in its surroundings, as much as fits on a line."""
    old: ast.expr
    new: ast.expr

    def __str__(self) -> str:
        return f"{self.function}: {ast.unparse(self.shown)} → {ast.unparse(self.changed(self.shown))}"

    def changed(self, tree: Tree) -> Tree:
        """A copy: deepcopy takes the new expression for the copy of the old one."""
        return copy.deepcopy(tree, {id(self.old): self.new})

    def code(self) -> CodeType:
        return compile(ast.fix_missing_locations(self.changed(self.tree)), f"rlcorr/{self.module}.py", "exec")


def mutants(module: str) -> list[Mutant]:
    tree = ast.parse((ROOT / "rlcorr" / f"{module.replace('.', '/')}.py").read_text(encoding="utf-8"))
    definitions = (ast.FunctionDef, ast.ClassDef)
    everywhere = {part.name for part in tree.body if isinstance(part, definitions)} | {"min", "max", "any", "all"}
    everywhere |= {name for part in tree.body if not isinstance(part, definitions) for name in names_in(part)}
    return [
        Mutant(module, tree, function, shown, old, ast.copy_location(new, old))
        for part in tree.body
        for function, shown, old, new in within(part, getattr(part, "name", "module"), None, everywhere)
    ]


def within(
    node: ast.AST, function: str, shown: ast.AST | None, names: set[str]
) -> Iterator[tuple[str, ast.AST, ast.expr, ast.expr]]:
    """Function, what is shown, old and new part of everything that can be changed below this node."""
    if isinstance(node, ast.FunctionDef):
        names = names | names_in(node)
    for field, child in children(node):
        around = shown or (child if fits_a_line(child) else None)
        view = around or (node if isinstance(node, ast.expr) else child)
        inner = f"{function}.{child.name}" if isinstance(child, ast.FunctionDef) else function
        if isinstance(child, ast.expr) and not is_place(node, child):
            yield from ((function, view, child, new) for new in changed(child, names))
            # Comparisons and `not` have changes of their own.
            if field in ("test", "ifs") and isinstance(child, ast.Name | ast.Attribute | ast.Call):
                yield function, view, child, ast.UnaryOp(ast.Not(), child)
        yield from within(child, inner, around, names)


def fits_a_line(node: ast.AST) -> bool:
    text = ast.unparse(node)
    return 20 <= len(text) <= 80 and "\n" not in text  # a shorter one could be anywhere


def children(node: ast.AST) -> Iterator[tuple[str, ast.AST]]:
    for field, value in ast.iter_fields(node):
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST) and not isinstance(child, SKIPPED) and field not in SKIPPED_FIELDS:
                yield field, child


def is_place(parent: ast.AST, node: ast.AST) -> bool:
    """The −1 of x.sum(-1) or x[-1]: 1 would often be the same place, so only the 1 is changed, to −2."""
    return isinstance(parent, ast.Call | ast.keyword | ast.arguments | ast.Subscript) and ast.unparse(node) == "-1"


def names_in(part: ast.AST) -> set[str]:
    kinds = {ast.Name: "id", ast.arg: "arg", ast.alias: "name"}
    return {getattr(node, kinds[type(node)]) for node in ast.walk(part) if type(node) in kinds}


# --- running ---


def in_child(mutant: Mutant | None, tests: list[str], limit: int) -> int:
    """Forks a process that runs the tests on the mutant, or on the library as it is → its process id."""
    code = mutant and mutant.code()  # here, where a mistake of this script is not taken for a failed test
    pid = os.fork()
    if pid:
        return pid
    signal.alarm(limit)  # nobody catches it: it ends the process
    for stream in (1, 2):
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream)
    os.chdir(ROOT)
    if mutant and code:
        serve(f"rlcorr.{mutant.module}", code)
    # Hypothesis need not look for the smallest example: the first failure decides.
    phases = [hypothesis.Phase.explicit, hypothesis.Phase.generate]
    hypothesis.settings.register_profile("mutate", phases=phases, report_multiple_bugs=False)
    hypothesis.settings.load_profile("mutate")
    files = [str((ROOT / "tests" / name).with_name(f"test_{Path(name).name}.py")) for name in tests]
    os._exit(pytest.main(["-x", "-q", "--tb=no", "--assert=plain", "-m", "not slow", *files]))


def serve(name: str, code: CodeType) -> None:
    """Importing this module runs this code."""
    original = SourceFileLoader.get_code

    def get_code(self: SourceFileLoader, fullname: str) -> CodeType | None:
        return code if fullname == name else original(self, fullname)

    SourceFileLoader.get_code = get_code


def statuses(todo: list[Mutant], limit: int) -> Iterator[tuple[Mutant, int]]:
    """Each mutant and the exit status of its tests, WORKERS at a time."""
    at_work: dict[int, Mutant] = {}
    for mutant in todo:
        if len(at_work) == WORKERS:
            yield finished(at_work)
        at_work[in_child(mutant, TESTS[mutant.module], limit)] = mutant
    while at_work:
        yield finished(at_work)


def finished(at_work: dict[int, Mutant]) -> tuple[Mutant, int]:
    pid, status = os.wait()
    return at_work.pop(pid), os.waitstatus_to_exitcode(status)


# --- telling ---


def check(module: str, options: argparse.Namespace, accepted: dict[str, str]) -> bool:
    """Runs and reports a module → whether its tests notice enough."""
    start = time.perf_counter()
    if status := os.waitstatus_to_exitcode(os.waitpid(in_child(None, TESTS[module], 600), 0)[1]):
        print(f"{module:12} its tests fail without any change, status {status}: first make them pass.")
        return False
    limit = max(SHORTEST_LIMIT, round(5 * (time.perf_counter() - start)))  # a slow survivor is not a hang
    todo = mutants(module)
    if options.sample:
        todo = random.Random(options.seed).sample(todo, min(options.sample, len(todo)))
    results = list(statuses(todo, limit))
    survivors = [mutant for mutant, status in results if status in SURVIVED]
    unexpected = [mutant for mutant in survivors if str(mutant) not in accepted]
    timeouts = sum(status == -signal.SIGALRM for _, status in results)
    noticed = 1 - len(survivors) / len(todo)
    rest = len(todo) - len(survivors) + len(unexpected)
    print(
        f"{module:12} {len(todo) - len(survivors):4} of {len(todo):4} noticed, {noticed:6.1%}; "
        f"without the accepted {1 - len(unexpected) / rest:6.1%}; {timeouts} timed out; "
        f"{time.perf_counter() - start:.0f} s",
        flush=True,
    )
    for mutant in sorted(unexpected, key=lambda m: m.old.lineno):
        print(f"  survives    rlcorr/{module}.py:{mutant.old.lineno} {mutant}")
    here = {str(mutant) for mutant in todo} if options.sample else set(accepted)
    for name in sorted(set(accepted) & here - set(map(str, survivors))):
        print(f"  accepted, but noticed or gone    {name}")
    return noticed >= ENOUGH


def main() -> None:
    parser = argparse.ArgumentParser(description="Do the tests notice a changed expression?")
    parser.add_argument("modules", nargs="*", metavar="module", help=f"default: all of {', '.join(TESTS)}")
    parser.add_argument("--sample", type=int, help="at most so many random changes per module")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    if strange := set(options.modules) - set(TESTS):
        sys.exit(f"unknown module {', '.join(sorted(strange))}. Known: {', '.join(TESTS)}.")
    accepted = tomllib.loads(ACCEPTED.read_text(encoding="utf-8"))
    enough = [check(module, options, accepted.get(module, {})) for module in options.modules or TESTS]
    sys.exit(not all(enough))


if __name__ == "__main__":
    main()
