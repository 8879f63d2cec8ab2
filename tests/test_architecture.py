"""Imports point one way, each heavy package has one home, and files and functions stay small.

The rooms and what each may import stand in one table. A new file needs no line in it: its folder says what it may use.
"""

import ast
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parent.parent

ROOT = "rlcorr"
# What the correction needs: `pip install rlcorr` brings torch for these, and nothing else.
CORRECTION = {ROOT, "rlcorr.measuring", "rlcorr.losses", "rlcorr.presets"}
SYSTEMS = {"rlcorr.systems", "rlcorr.systems.verl", "rlcorr.systems.mapping"}
GROUND = {*CORRECTION, "rlcorr.analysis", "rlcorr.gradients", "rlcorr.lab", "rlcorr.records"}
TRAIN = [f"rlcorr.train.{room}" for room in ("inputs", "config", "learner", "rollout", "output", "sketches", "session")]
# Room → the other rooms that it may import, inside functions too. Nothing else of the project.
ROOMS: dict[str, set[str]] = {
    ROOT: set(),
    "rlcorr.measuring": {ROOT},
    "rlcorr.losses": {ROOT, "rlcorr.measuring"},
    "rlcorr.presets": {ROOT, "rlcorr.measuring", "rlcorr.losses"},
    "rlcorr.systems.mapping": CORRECTION,
    "rlcorr.systems.verl": {*CORRECTION, "rlcorr.systems.mapping"},
    "rlcorr.systems": {*CORRECTION, "rlcorr.systems.mapping", "rlcorr.systems.verl"},
    "rlcorr.teaching": CORRECTION,
    "rlcorr.analysis": {*CORRECTION, *SYSTEMS},
    "rlcorr.gradients": CORRECTION,
    "rlcorr.lab": {*CORRECTION, "rlcorr.gradients"},
    "rlcorr.records": {*CORRECTION, "rlcorr.gradients"},
    "rlcorr.foreign.parse": {ROOT},
    "rlcorr.foreign": {*CORRECTION, "rlcorr.records", *SYSTEMS, "rlcorr.foreign.parse"},
    "rlcorr.recorders": {*CORRECTION, "rlcorr.records", "rlcorr.foreign", "rlcorr.systems.verl"},
    "rlcorr.figures": GROUND,
    "rlcorr.strips": {*GROUND, "rlcorr.figures"},
    "rlcorr.train.inputs": {ROOT},
    "rlcorr.train.config": {*GROUND, "rlcorr.systems", "rlcorr.train.inputs"},
    "rlcorr.train.learner": {*GROUND, *TRAIN[:2]},
    "rlcorr.train.rollout": {*GROUND, *TRAIN[:3]},
    "rlcorr.train.output": {*GROUND, "rlcorr.systems", *TRAIN[:4]},
    "rlcorr.train.session": {*GROUND, *TRAIN[:5]},
    "rlcorr.train.sketches": {*GROUND, *TRAIN[:5], "rlcorr.train.session"},
    "rlcorr.train": {*GROUND, "rlcorr.systems", *TRAIN},
    "rlcorr.command": {
        *GROUND, "rlcorr.systems", "rlcorr.systems.mapping", "rlcorr.foreign", "rlcorr.train", "rlcorr.train.inputs",
        "rlcorr.train.config",
        "rlcorr.train.output", "rlcorr.train.session",
    },
}  # fmt: skip
LIBRARY = {room for room in ROOMS if not room.startswith("rlcorr.train")}
ROOMS |= {
    "text": LIBRARY,
    "data": {*LIBRARY, "text"},
    "state": {*LIBRARY, "text", "data"},
    "components": {*LIBRARY, "state"},
    "controls": {*LIBRARY, "text", "state", "data", "components"},
    "views": {*LIBRARY, "text", "state", "data", "components", "controls"},
    "static_site": {*LIBRARY, "text", "state", "data", "components", "controls", "views"},
    "app": {*LIBRARY, "text", "state", "data", "components", "controls", "views", "static_site"},
    "lessons": LIBRARY,
    "lessons._site": set(),
}
# The front door shows what the root and the translators hold; `python -m rlcorr` calls the command line.
FRONT_DOORS = {
    "rlcorr/__init__.py": {*CORRECTION, "rlcorr.systems", "rlcorr.systems.verl"},
    "rlcorr/__main__.py": {"rlcorr.command"},
}
# The lesson on experts asks the real router what rounding does to it; the last step of mini.py trains on a real engine.
LESSONS_IN_THE_TRAINER = {
    "lessons/15_kernels_and_experts.py": {"rlcorr.train.learner", "rlcorr.train"},
    "lessons/mini_vllm.py": {
        "rlcorr.train.config", "rlcorr.train.inputs", "rlcorr.train.learner", "rlcorr.train.rollout",
    },
}  # fmt: skip

FILES = sorted(path for folder in ("rlcorr", "app", "lessons") for path in (REPOSITORY / folder).rglob("*.py"))
CODE = [path for path in FILES if not path.name[:2].isdigit()]  # lessons are texts, as long as what they explain
TESTS = sorted((REPOSITORY / "tests").rglob("*.py"))


def label(path: Path) -> str:
    return path.relative_to(REPOSITORY).as_posix()


def room_of_file(name: str) -> str:
    """The room of a file: its folder, written as its users import it."""
    module = name.removesuffix(".py").replace("/", ".")
    folder = module.rpartition(".")[0]
    if folder == "lessons.exercises":
        return "lessons"
    if name == "app/state.py":  # the pages import it by this name
        return "state"
    return folder.removeprefix("app.")


def room_of_import(name: str) -> str | None:
    """The room in which an imported name lies; None where it is not of the project."""
    rooms = [room for room in ROOMS if within(name, room)]
    return max(rooms, key=len) if rooms else None


@dataclass(frozen=True)
class Facts:
    """What one walk over a file's syntax tree gives."""

    imports: frozenset[str]
    """Dotted names of everything that the file imports; `from a import b` gives a.b."""
    at_once: frozenset[str]
    """Those that merely importing the module imports: function bodies left out."""
    names: frozenset[str]
    """Variables and parameters."""
    functions: tuple[tuple[str, int], ...]
    """Name and lines of each function."""


@cache
def facts(path: Path) -> Facts:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    nodes = list(ast.walk(tree))
    functions = [node for node in nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    inside = {id(node) for function in functions for part in function.body for node in ast.walk(part)}
    names = {node.id for node in nodes if isinstance(node, ast.Name)}
    return Facts(
        frozenset(name for node in nodes for name in _imported(node)),
        frozenset(name for node in nodes if id(node) not in inside for name in _imported(node)),
        frozenset(names | {node.arg for node in nodes if isinstance(node, ast.arg)}),
        tuple((f.name, (f.end_lineno or 0) - f.lineno + 1) for f in functions),
    )


def _imported(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        assert node.level == 0, "imports are absolute here"
        yield from (f"{node.module}.{alias.name}" for alias in node.names)
    elif isinstance(node, ast.Call) and ast.unparse(node.func) == "importlib.import_module":
        yield from (str(word.value) for word in node.args if isinstance(word, ast.Constant))


def within(name: str, package: str) -> bool:
    return name == package or name.startswith(package + ".")


def test_the_table_has_every_room_and_no_other() -> None:
    assert {room_of_file(label(path)) for path in FILES} == set(ROOMS)


def test_no_room_is_reached_from_what_it_imports() -> None:
    """No circle: the rooms can be put in an order in which each imports only earlier ones."""
    placed: set[str] = set()
    while ready := {room for room, allowed in ROOMS.items() if room not in placed and allowed <= placed}:
        placed |= ready
    assert placed == set(ROOMS)


def test_a_room_imports_only_the_rooms_of_its_row() -> None:
    beyond = {}
    for name in map(label, FILES):
        room = room_of_file(name)
        allowed = {room, *FRONT_DOORS.get(name, ROOMS[room]), *LESSONS_IN_THE_TRAINER.get(name, ())}
        used = {room_of_import(imported) for imported in facts(REPOSITORY / name).imports} - {None}
        beyond |= {name: used - allowed} if used - allowed else {}
    assert beyond == {}


def test_the_correction_needs_torch_alone() -> None:
    rooms = {*CORRECTION, *SYSTEMS}
    files = [path for path in FILES if room_of_file(label(path)) in rooms and path.name != "__main__.py"]
    packages = {name.split(".")[0] for path in files for name in facts(path).at_once}
    assert packages - sys.stdlib_module_names == {"rlcorr", "torch"}


def test_the_command_line_starts_the_trainer_inside_functions_only() -> None:
    """`python -m rlcorr` must answer without loading transformers. The trainer's settings are light: it shows them."""
    for path in (REPOSITORY / "rlcorr" / "command").glob("*.py"):
        at_once = {name for name in facts(path).at_once if not within(name, "rlcorr.train.config")}
        assert not any(within(name, "rlcorr.train") for name in at_once), label(path)


@pytest.mark.parametrize(
    ("package", "home"),
    [
        ("transformers", ("rlcorr/train/", "rlcorr/recorders/trl.py")),  # the trainer, and TRL's callbacks
        ("vllm", "rlcorr/train/"),
        ("tensorboard", "rlcorr/train/"),
        ("plotly", ("rlcorr/figures/canvas.py", "lessons/_images.py")),  # figures, and what a browser draws them with
        ("pyarrow", ("rlcorr/records/step_files.py", "rlcorr/foreign/")),
        # The trainer loads checkpoints, and other people's pairs may come in a .safetensors, too.
        ("safetensors", ("rlcorr/records/sketch_files.py", "rlcorr/foreign/parse/", "rlcorr/train/")),
        ("streamlit", "app/"),
    ],
)
def test_a_heavy_package_has_one_home(package: str, home: str | tuple[str, ...]) -> None:
    elsewhere = [path for path in FILES if not label(path).startswith(home)]
    assert [label(path) for path in elsewhere if any(within(name, package) for name in facts(path).imports)] == []


def test_no_test_imports_a_test() -> None:
    """What tests share lies in support/."""
    importers = [path for path in TESTS if any(name.split(".")[0].startswith("test_") for name in facts(path).imports)]
    assert importers == []


def test_a_file_is_named_after_what_it_holds() -> None:
    empty_names = {"utils.py", "common.py", "base.py", "helpers.py", "misc.py"}
    assert [label(path) for path in (*FILES, *TESTS) if path.name in empty_names] == []


def test_variables_are_named_for_what_they_hold() -> None:
    """Not for their part in a sentence: these four once stood in nine hundred places and said nothing."""
    wrong = {label(path): facts(path).names & {"found", "each", "known", "own"} for path in (*FILES, *TESTS)}
    assert {name: names for name, names in wrong.items() if names} == {}


def test_files_and_functions_stay_small() -> None:
    """Tests may be longer: a table of cases reads best in one piece."""
    for path in (*CODE, *TESTS):
        lines, of_function = (500, 40) if path in CODE else (640, 60)
        assert line_count(path) <= lines, label(path)
        assert [name for name, length in facts(path).functions if length > of_function] == [], label(path)


def line_count(path: Path) -> int:
    return len(path.read_text(encoding="utf-8").splitlines())


BUDGETS = {
    ("rlcorr", "rlcorr/losses", "rlcorr/measuring", "rlcorr/presets"): 3_767,
    ("rlcorr/systems", "rlcorr/systems/mapping", "rlcorr/systems/verl", "rlcorr/recorders"): 3_482,
    ("rlcorr/foreign", "rlcorr/foreign/parse"): 2_976,
    ("rlcorr/analysis", "rlcorr/strips", "rlcorr/gradients"): 5_517,
    ("rlcorr/train", *(room.replace(".", "/") for room in TRAIN)): 6_305,
    ("rlcorr/records", "rlcorr/figures", "rlcorr/command", "rlcorr/teaching"): 6_588,
    ("rlcorr/lab",): 448,
    ("app",): 10_689,
    ("lessons", "lessons/exercises"): 5_553,
    ("tests",): 40_397,
}
"""Folders → the lines of Python and JavaScript that they may have together. What needs more names what it replaces."""


@pytest.mark.parametrize("folders", BUDGETS, ids=lambda folders: folders[0])
def test_rooms_have_a_budget_of_lines(folders: tuple[str, ...]) -> None:
    assert sum(map(line_count, code_in(folders))) <= BUDGETS[folders]


def code_in(folders: tuple[str, ...]) -> list[Path]:
    """Files of Python and JavaScript: of the app and the tests with all folders inside; lessons are texts."""
    paths = []
    for folder in folders:
        below = (REPOSITORY / folder).rglob if folder in {"app", "tests"} else (REPOSITORY / folder).glob
        paths += [path for ending in ("py", "js") for path in below(f"*.{ending}") if not path.name[:2].isdigit()]
    return paths
