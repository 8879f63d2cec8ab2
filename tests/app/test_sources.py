"""Every picture says where it comes from, also where that is not the chosen step."""

import hashlib
from pathlib import Path

from app_pages import committed, one_scan, open_app, root, sources
from app_runs import make_run, study_row

from rlcorr.records import step_files, study
from rlcorr.records.disk import write_whole

__all__ = ["committed", "one_scan", "root"]  # fixtures

TRAINING = "views/training.py"
INDEX = """
[shared]
seeds = [0, 2]
arms = ["disabled"]
options = ""
sketches = ""
[small]
story = "s"
look = "l"
options = ""
"""


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()[:12]


def test_curves_of_one_run_name_its_metrics(root: Path) -> None:
    run = make_run(root, "alpha", steps=2)
    stamps = sources(open_app(TRAINING, step="0"))
    assert len(stamps) == 6
    assert {source for _, source in stamps} == {f"alpha · seed 0 · {digest(run / 'metrics.jsonl')}"}


def test_a_study_names_its_seeds_and_its_table(root: Path) -> None:
    make_run(root, "alpha", steps=1)
    study.FOLDER.mkdir()
    (study.FOLDER / "index.toml").write_text(INDEX, encoding="utf-8")
    rows = [study_row("disabled", seed, step, 0.5) for seed in (0, 2) for step in (1, 2, 3, 4)]
    write_whole(study.study_path("small"), step_files.from_rows(rows, {}))
    stamps = sources(open_app(TRAINING, part="Study"))
    assert len(stamps) == 3  # reward, k3, kept tokens
    assert {source for _, source in stamps} == {f"study small · seeds 0, 2 · {digest(study.study_path('small'))}"}


def test_the_example_is_not_the_step(committed: None) -> None:
    stamps = dict(sources(open_app("views/kl.py", run="stale_4")))
    recorded, example = stamps["Its gradient in the example"].split("\n")
    assert recorded.startswith("recorded: stale_4 · step 40 · seed ")
    assert example == "example: five tokens, exact"
