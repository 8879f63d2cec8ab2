"""Training runs of a study: one after the other, and on Ray."""

import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from processes import ROOT, rlcorr

from rlcorr.command import study, study_workers
from rlcorr.command.cli import main, run_verb
from rlcorr.errors import UsageError
from rlcorr.records import runs, step_files
from rlcorr.records import study as studies

INDEX = """
[shared]
seeds = [0]
arms = ["disabled", "half"]
sketches = ""
options = '''--model {model} --rollout.engine transformers --rollout.dtype float32 --prompts-per-step 8 --steps 5
--eval-prompts 2 --eval-every 5 --no-save-model --checkpoint-every 0 --no-tensorboard --record-every 5'''

[shared.arm]
half = "--preset disabled --budget.rule random_sequence --budget.keep 0.5"

[small]
story = "A random model."
look = "Nothing."
options = ""
"""
NAMES, STEPS = ["disabled_0", "half_0"], 5
"""Two training runs."""

pytestmark = pytest.mark.slow


def study_folder(path: Path, tiny_model: Path) -> Path:
    (path / "study").mkdir(parents=True)
    (path / "study" / "index.toml").write_text(INDEX.format(model=tiny_model))
    return path


def finished(folder: Path) -> dict[str, int]:
    """Return name → time of its file, for the training runs that are finished."""
    return {file.stem: file.stat().st_mtime_ns for file in (folder / "local" / "study_small").glob("*.parquet")}


def table(folder: Path) -> list[dict]:
    return step_files.to_rows(folder / "study" / "small.parquet")[0]


def train_small(folder: Path, *words: str) -> int:
    """Train the missing arms of the study in this folder, in this process."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(studies, "FOLDER", folder / "study")
        patch.setattr(runs, "LOCAL", folder / "local")
        patch.setenv("OMP_NUM_THREADS", "1")  # otherwise the verb sets it
        patch.setattr(study, "train_on_ray", lambda of_study, arms, *_: study_workers.train_here(of_study, arms))
        return run_verb(["study", "small", "--train", *words])


@pytest.fixture(scope="module")
def trained_here(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> Path:
    """Train one arm, interrupt the next one, and let the study go on."""
    folder = study_folder(tmp_path_factory.mktemp("here"), tiny_model)
    train_arm = study_workers.train_arm

    def only_one(of_study: studies.Study, arm: studies.Arm) -> studies.TrainedArm:
        if finished(folder):
            raise KeyboardInterrupt
        return train_arm(of_study, arm)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(study_workers, "train_arm", only_one)
        with pytest.raises(KeyboardInterrupt):
            train_small(folder)
    before = finished(folder)
    assert len(before) == 1
    assert not (folder / "study" / "small.parquet").exists()
    assert train_small(folder) == 0
    assert {name: finished(folder)[name] for name in before} == before
    return folder


def test_a_study_goes_on_where_it_was(trained_here: Path) -> None:
    """Check that the table holds every step of every training run, although the study was interrupted."""
    rows = table(trained_here)
    assert sorted(finished(trained_here)) == NAMES
    assert [row["step"] for row in rows] == [*range(1, STEPS + 1)] * len(NAMES)
    kept = {row["preset"]: row["kept_fraction"] for row in rows}
    assert kept["disabled"] == 1
    assert 0.5 <= kept["half"] < 0.9
    assert not list((trained_here / "local").glob("study_small_*"))  # of a finished training run only its rows remain


def test_arms_that_another_machine_trained_are_gathered(tmp_path: Path, trained_here: Path) -> None:
    """Copy the files of all arms without the table: nothing is trained, and the table is the same."""
    folder = tmp_path / "runs"
    shutil.copytree(trained_here, folder)
    (folder / "study" / "small.parquet").unlink()
    before = finished(folder)
    assert train_small(folder) == 0
    assert finished(folder) == before
    assert table(folder) == table(trained_here)


def test_without_ray_there_is_no_cluster(tmp_path: Path, tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(UsageError, match="ray is not installed: pip install ray, or leave out --address"):
        train_small(study_folder(tmp_path, tiny_model), "--address", "auto")


# --- on Ray ---


def patiently(get_node: Callable[..., dict]) -> Callable[..., dict]:
    """Ray waits thirty seconds until a node that it starts can be found, too short on a busy machine."""

    def get(*args: Any) -> dict:
        deadline = time.monotonic() + 60
        while True:
            try:
                return get_node(*args)
            except RuntimeError:
                if time.monotonic() > deadline:
                    raise
            time.sleep(0.1)

    return get


def one_node() -> Any:
    """Return a cluster of one node, tried five times: a node whose agents need more than fifteen seconds ends itself
    (ray-project/ray issue 65983), and Ray only says that it timed out."""
    from ray.cluster_utils import Cluster

    tries = 5
    while True:
        tries -= 1
        try:
            return Cluster(
                initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False, "wait": False}
            )
        except Exception as error:  # Ray raises no other class
            if not tries or "timed out during startup" not in str(error):
                raise


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> Iterator[tuple[str, Path]]:
    """Start a node of one core, and yield its address with the folder in which its workers train."""
    from ray._private import services

    folder = study_folder(tmp_path_factory.mktemp("ray"), tiny_model)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RLCORR_RUNS", str(folder))
        patch.setenv("PYTHONPATH", str(ROOT))
        patch.setattr(services, "get_node", patiently(services.get_node))
        node = one_node()
        try:
            node.wait_for_nodes(timeout=300)  # `wait` would be for thirty seconds too
            yield str(node.address), folder
        finally:
            node.shutdown()


def test_ray_gives_the_same_numbers(cluster: tuple[str, Path], trained_here: Path) -> None:
    address, folder = cluster
    done = rlcorr("study", "small", "--train", "--address", address, runs_folder=folder, timeout=900)
    assert done.returncode == 0, done.stderr
    assert table(folder) == table(trained_here)


def test_an_address_where_no_ray_answers(
    tmp_path: Path, tiny_model: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(studies, "FOLDER", study_folder(tmp_path, tiny_model) / "study")
    monkeypatch.setattr(runs, "LOCAL", tmp_path / "local")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")  # otherwise the verb sets it
    for words, refusal in (
        (["--address", "127.0.0.1:9"], "no Ray answers at '127.0.0.1:9'"),
        (["--address", "nonsense"], "no Ray answers at 'nonsense' (Invalid address format: nonsense)"),
    ):
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main(["study", "small", "--train", *words])
        last = capsys.readouterr().err.strip().splitlines()[-1]
        assert ended.value.code == 2, words
        assert last.startswith("rlcorr: "), words
        assert refusal in last, words
