"""Training runs of a study at the same time, in processes and on Ray, with processes and nodes that are killed."""

import os
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from processes import ROOT, running, wait_for

from rlcorr.command.cli import main
from rlcorr.records import runs, step_files
from rlcorr.records import study as studies

INDEX = """
[shared]
seeds = [0]
arms = ["disabled", "half"]
sketches = ""
options = '''--model {model} --rollout.engine transformers --rollout.dtype float32 --prompts-per-step 8 --steps 20
--eval-prompts 2 --eval-every 20 --no-save-model --checkpoint-every 0 --no-tensorboard --record-every 20'''

[shared.arm]
half = "--preset disabled --budget.rule random_sequence --budget.keep 0.5"

[small]
story = "A random model."
look = "Nothing."
options = ""
"""
NAMES, STEPS = ["disabled_0", "half_0"], 20
"""Two training runs: each process imports PyTorch and transformers for 6 s, most of the time of the test."""

pytestmark = pytest.mark.slow


def study_folder(path: Path, tiny_model: Path) -> Path:
    (path / "study").mkdir(parents=True)
    (path / "study" / "index.toml").write_text(INDEX.format(model=tiny_model))
    return path


def in_progress(folder: Path) -> list[Path]:
    """Return the folders of training runs that have made a step."""
    logs = (folder / "local").glob("study_small_*/metrics.jsonl")
    return [log.parent for log in logs if log.stat().st_size]


def finished(folder: Path) -> dict[str, int]:
    """Return name → time of its file, for the training runs that are finished."""
    return {file.stem: file.stat().st_mtime_ns for file in (folder / "local" / "study_small").glob("*.parquet")}


def begun(folder: Path) -> set[str]:
    """Return the names of the training runs that have begun, finished or not."""
    folders = (folder / "local").glob("study_small_*")
    return {path.name.removeprefix("study_small_") for path in folders} | finished(folder).keys()


def workers_of(process: int) -> list[int]:
    """Return the children that train: started by multiprocessing, but not its resource tracker."""
    children = map(int, Path(f"/proc/{process}/task/{process}/children").read_text().split())
    return [child for child in children if b"spawn_main" in Path(f"/proc/{child}/cmdline").read_bytes()]


def of_session(session: int) -> list[int]:
    """Return the processes of a session that are alive."""
    alive = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, _, of_process = stat.read_text().rpartition(")")[2].split()[:4]
        except (FileNotFoundError, ProcessLookupError):
            continue  # it has just ended
        if int(of_process) == session and state != "Z":
            alive.append(int(stat.parent.name))
    return alive


def table(folder: Path) -> list[dict]:
    return step_files.to_rows(folder / "study" / "small.parquet")[0]


@pytest.fixture(scope="module")
def by_processes(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> Path:
    """Train all arms in processes, and kill one of them."""
    folder = study_folder(tmp_path_factory.mktemp("processes"), tiny_model)
    log = folder / "log"
    with running(
        "study", "small", "--train", "--pool", "processes", "--workers", "2", runs_folder=folder, log=log
    ) as study:
        wait_for("a step", lambda: bool(in_progress(folder)), log)
        os.kill(workers_of(study.pid)[0], signal.SIGKILL)
        assert study.wait(300) == 0, log.read_text()
    return folder


def test_a_killed_training_is_tried_again(by_processes: Path) -> None:
    """Check that the table holds every step of every training run, although one was killed."""
    rows = table(by_processes)
    assert sorted(finished(by_processes)) == NAMES
    assert len(rows) == len(NAMES) * STEPS
    assert [row["step"] for row in rows] == [*range(1, STEPS + 1)] * len(NAMES)
    kept = {row["preset"]: row["kept_fraction"] for row in rows}
    assert kept["disabled"] == 1
    assert 0.5 <= kept["half"] < 0.9
    assert not list((by_processes / "local").glob("study_small_*"))  # of a finished training run only its rows remain


@pytest.fixture
def in_this_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., int]:
    """Return a function that calls the verb `study` here, in the folder of runs that is given, with its exit code."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")  # otherwise the verb sets it

    def study(folder: Path, *words: str) -> int:
        monkeypatch.setenv("RLCORR_RUNS", str(folder))  # for its processes
        monkeypatch.setattr(studies, "FOLDER", folder / "study")
        monkeypatch.setattr(runs, "LOCAL", folder / "local")
        with pytest.raises(SystemExit) as ended:
            main(["study", "small", "--train", *words])
        return int(ended.value.code or 0)

    return study


IN_PROCESSES = ("--pool", "processes", "--workers", "1")


def test_an_interrupted_study_goes_on_where_it_was(
    tmp_path: Path, by_processes: Path, in_this_process: Callable[..., int]
) -> None:
    """Interrupt a study of which one run is finished: nothing keeps running, only the other run is made again, and the
    results are the same. The files of all arms without the table, from another machine, are gathered untrained."""
    folder, log = tmp_path / "runs", tmp_path / "log"
    shutil.copytree(by_processes, folder)
    (folder / "study" / "small.parquet").unlink()
    (folder / "local" / "study_small" / "half_0.parquet").unlink()
    before = finished(folder)
    with running("study", "small", "--train", *IN_PROCESSES, runs_folder=folder, log=log) as study:
        wait_for("the other run", lambda: bool(in_progress(folder)), log)
        study.send_signal(signal.SIGINT)
        study.wait(60)
        wait_for("the end of all processes", lambda: not of_session(study.pid), log)
    assert not (folder / "study" / "small.parquet").exists()
    for _ in ("the other run is made", "nothing is made"):
        assert in_this_process(folder, *IN_PROCESSES) == 0
        after = finished(folder)
        assert {name: after[name] for name in before} == before
        assert table(folder) == table(by_processes)
        before = after
        (folder / "study" / "small.parquet").unlink()


def test_a_training_that_fails_ends_the_study(
    tmp_path: Path, tiny_model: Path, in_this_process: Callable[..., int], capsys: pytest.CaptureFixture[str]
) -> None:
    folder = study_folder(tmp_path / "runs", tiny_model)
    index = folder / "study" / "index.toml"
    index.write_text(index.read_text().replace(f"--model {tiny_model}", f"--model {tmp_path}/none"))
    assert in_this_process(folder, *IN_PROCESSES) != 0
    assert "disabled_0 ended with code 1; see" in capsys.readouterr().err
    assert (folder / "local" / "study_small" / "disabled_0.log").read_text()


# --- on Ray ---


def patiently(get_node: Callable[..., dict]) -> Callable[..., dict]:
    """Ray waits thirty seconds until a node that it starts can be found, too short on a busy machine."""

    def get(*args: Any) -> dict:
        deadline = time.monotonic() + 300
        while True:
            try:
                return get_node(*args)
            except RuntimeError:
                if time.monotonic() > deadline:
                    raise
            time.sleep(0.1)

    return get


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> Iterator[tuple]:
    """Start two nodes of one core each, and yield them with the folder in which they train."""
    from ray._private import services
    from ray.cluster_utils import Cluster

    folder = study_folder(tmp_path_factory.mktemp("ray"), tiny_model)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RLCORR_RUNS", str(folder))
        patch.setenv("PYTHONPATH", str(ROOT))
        patch.setattr(services, "get_node", patiently(services.get_node))
        nodes = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False, "wait": False})
        try:
            second = nodes.add_node(num_cpus=1, wait=False)
            nodes.wait_for_nodes(timeout=300)  # `wait` would be for thirty seconds too
            yield nodes, second, folder
        finally:
            nodes.shutdown()


def test_a_killed_node_changes_nothing(cluster: tuple, tmp_path: Path, by_processes: Path) -> None:
    """Kill a node when both have work: its run is repeated on the other, with the same numbers as in processes.

    The test does not wait until both make steps at the same time: on a busy machine one training run may end before
    the other has imported PyTorch."""
    nodes, second, folder = cluster
    log = tmp_path / "log"
    with running("study", "small", "--train", "--address", nodes.address, runs_folder=folder, log=log) as study:
        wait_for("two training runs", lambda: len(begun(folder)) == 2, log)
        nodes.remove_node(second, allow_graceful=False)
        assert study.wait(300) == 0, log.read_text()
    assert table(folder) == table(by_processes)


def test_an_address_where_no_ray_answers(
    tmp_path: Path, tiny_model: Path, in_this_process: Callable[..., int], capsys: pytest.CaptureFixture[str]
) -> None:
    folder = study_folder(tmp_path / "runs", tiny_model)
    for words, refusal in (
        (["--address", "127.0.0.1:9"], "no Ray answers at '127.0.0.1:9'"),
        (["--address", "nonsense"], "no Ray answers at 'nonsense' (Invalid address format: nonsense)"),
        (["--pool", "processes", "--address", "auto"], "goes with Ray, not with --pool processes"),
    ):
        capsys.readouterr()
        assert in_this_process(folder, *words) == 2, words
        last = capsys.readouterr().err.strip().splitlines()[-1]
        assert last.startswith("rlcorr: "), words
        assert refusal in last, words
