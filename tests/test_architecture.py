"""Imports point one way, each heavy package has one home, and files stay small."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parent.parent
LIBRARY = REPOSITORY / "rlcorr"

# Earlier lines know nothing of later ones, and modules of one line nothing of each other.
LAYERS = [
    {"errors"},
    {"types", "config", "columns", "check"},
    {"masked", "parquet_sizes"},
    {"ratios"},
    {"kl", "correction", "advantages", "axes", "drawing"},
    {"curves", "presets", "losses", "diagnostics", "sweep", "thresholds", "translate", "triage"},
    {"report", "translate_verl", "objective", "array_files", "json_rows", "foreign_dumps"},
    {"export", "glossary", "preset_map"},
    {"parquet", "plots", "sweep_plots", "budget", "toy", "score_sums", "regions"},
    {"runs", "foreign_step", "token_story"},
    {"gradients", "sketches", "toy_sweep", "import_pairs", "token_formulas"},
    {"training_plots", "live_run", "train_request"},
    {"kl_truth", "record", "gradient_sweep", "study", "comparison"},
    {"gradient_table", "gradient_plots", "study_table", "mismatch_plots", "comparison_plots"},
    {"study_plots"},
    {"play"},
    {"doctor"},
    {"cli"},
    {"__main__"},
]
LEVEL = {module: level for level, modules in enumerate(LAYERS) for module in modules}
# May start the trainer, inside a function only: `python -m rlcorr` must answer without loading transformers. The
# trainer's configuration is light, and the command line shows its fields.
LAZY = {"cli", "play", "doctor", "train_request"}
LIGHT = "rlcorr.train.config"

MODULES = sorted(LIBRARY.glob("*.py"))
TRAIN = sorted((LIBRARY / "train").rglob("*.py"))
APP = sorted((REPOSITORY / "app").rglob("*.py"))
LESSONS = sorted((REPOSITORY / "lessons").rglob("*.py"))
OURS = [*MODULES, *TRAIN, *APP, *LESSONS]


def label(path: Path) -> str:
    return path.relative_to(REPOSITORY).as_posix()


def imports(tree: ast.AST) -> Iterator[str]:
    """Dotted names of everything imported in this tree; `from a import b` gives a.b."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute here"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def imported(path: Path) -> set[str]:
    return set(imports(ast.parse(path.read_text(encoding="utf-8"))))


def imported_at_once(path: Path) -> set[str]:
    """What merely importing the module imports: function bodies left out."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            node.body = []
    return set(imports(tree))


def within(name: str, package: str) -> bool:
    return name == package or name.startswith(package + ".")


def library_modules(names: set[str]) -> set[str]:
    """The rlcorr modules among these names. `from rlcorr import runs` names a module, `… import preset` does not."""
    found = set()
    for name in names:
        parts = name.split(".")
        if parts[0] == "rlcorr":
            found.add(parts[1] if len(parts) > 1 and parts[1] in (*LEVEL, "train") else "__init__")
    return found


def test_there_is_something_to_check() -> None:
    assert {"types", "correction", "runs"} <= {path.stem for path in MODULES}
    assert library_modules({"rlcorr.train.ppo", "rlcorr.runs.ROOT", "torch.nn"}) == {"train", "runs"}


@pytest.mark.parametrize("path", MODULES, ids=label)
def test_the_library_imports_only_earlier_layers(path: Path) -> None:
    if path.stem == "__init__":  # the front door: it shows what the first layers hold
        assert library_modules(imported(path)) <= {"config", "correction", "diagnostics", "presets", "report", "types"}
        return
    assert path.stem in LEVEL, f"{label(path)} has no place in LAYERS yet"
    others = library_modules(imported(path)) - ({"train"} if path.stem in LAZY else set())
    assert {other for other in others if other not in LEVEL or LEVEL[other] >= LEVEL[path.stem]} == set()
    at_once = {name for name in imported_at_once(path) if path.stem != "cli" or not within(name, LIGHT)}
    assert "train" not in library_modules(at_once)


@pytest.mark.parametrize(
    ("package", "home"),
    [
        ("transformers", "rlcorr/train/"),
        ("vllm", "rlcorr/train/"),
        ("tensorboard", "rlcorr/train/"),
        ("wandb", "rlcorr/train/"),
        ("plotly", ("rlcorr/drawing.py", "lessons/_images.py")),  # figures, and the script that a browser draws with
        ("pyarrow", "rlcorr/parquet.py"),
        # The trainer loads checkpoints, and other people's pairs may come in a .safetensors, too.
        ("safetensors", ("rlcorr/sketches.py", "rlcorr/array_files.py", "rlcorr/train/")),
        ("streamlit", "app/"),
    ],
)
def test_a_heavy_package_has_one_home(package: str, home: str | tuple[str, ...]) -> None:
    elsewhere = [label(path) for path in OURS if not label(path).startswith(home)]
    users = {name for name in elsewhere if any(within(x, package) for x in imported(REPOSITORY / name))}
    assert users == set()


@pytest.mark.parametrize("path", [*APP, *LESSONS], ids=label)
def test_the_app_and_the_lessons_never_import_the_trainer(path: Path) -> None:
    """But for the lesson on experts, which asks the real router what rounding does to it."""
    if path.stem == "14_mixture_of_experts":
        return
    assert not any(within(name, "rlcorr.train") for name in imported(path))


@pytest.mark.parametrize("path", TRAIN, ids=label)
def test_the_trainer_never_imports_what_stands_on_top(path: Path) -> None:
    names = imported(path)
    assert not any(within(name, package) for name in names for package in ("app", "lessons", "streamlit"))
    assert library_modules(names) & {"cli", "play", "doctor", "plots"} == set()


@pytest.mark.parametrize("path", OURS, ids=label)
def test_a_file_is_named_after_what_it_holds(path: Path) -> None:
    assert path.name not in ("utils.py", "common.py", "base.py", "helpers.py", "misc.py")


@pytest.mark.parametrize("path", [*MODULES, *TRAIN], ids=label)
def test_no_long_files(path: Path) -> None:
    assert len(path.read_text(encoding="utf-8").splitlines()) <= 400
