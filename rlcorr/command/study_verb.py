"""`python -m rlcorr study`: what came of a study, and its trainings that are missing."""

import importlib.util
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

import tyro
from tqdm import tqdm

from rlcorr.command.processes import in_processes
from rlcorr.errors import UsageError
from rlcorr.records import study
from rlcorr.records.trained_arms import gather, missing

Pool = Literal["auto", "ray", "processes"]


@dataclass(frozen=True)
class Study:
    """What became of every arm under a mismatch, as a table."""

    name: Annotated[str, tyro.conf.Positional]
    """Name of a study in runs/study/index.toml, or all."""
    train: bool = False
    """Make the trainings that are missing. Each is a file as soon as it is finished, so an interrupted study goes on
    where it was."""
    pool: Pool = "auto"
    """Where they run: ray, processes of this machine, or auto: Ray where it is installed."""
    address: str = ""
    """ray: address of a cluster, as host:port or auto; empty: this machine."""
    gpus: float = 0.0
    """ray: share of a GPU that each training takes."""
    workers: int = 0
    """processes: trainings at once; 0: as many as there are cores."""


def run_study(request: Study) -> int:
    from rlcorr.command.study_table import study_table  # scipy's statistics take half a second

    for name in study.read_index() if request.name == "all" else [request.name]:
        if request.train:
            _train(request, study.find_study(name))
        print("\n".join(study_table(name)), "\n")
    return 0


def _train(request: Study, wanted: study.Study) -> None:
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # one core each, as Ray gives them: else the numbers would differ
    if not (arms := missing(wanted)):
        return
    for _ in tqdm(_trainings(request, wanted, arms), total=len(arms), desc=wanted.name, unit="training"):
        pass
    print(f"written {gather(wanted)}")


def _trainings(request: Study, wanted: study.Study, arms: Sequence[study.Arm]) -> Iterator[study.Arm]:
    if not _on_ray(request):
        return in_processes(wanted, arms, request.workers or os.cpu_count() or 1)
    from rlcorr.command.ray_tasks import on_ray  # an extra

    return on_ray(wanted, arms, request.address, request.gpus)


def _on_ray(request: Study) -> bool:
    installed = importlib.util.find_spec("ray") is not None
    if not installed and (request.pool == "ray" or request.address):
        raise UsageError("ray is not installed: pip install ray, or leave out --pool ray and --address.")
    if request.pool == "processes" and request.address:
        raise UsageError(f"--address {request.address} goes with Ray, not with --pool processes.")
    return installed and request.pool != "processes"
