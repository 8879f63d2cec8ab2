"""Training runs of a study: one after the other here, or many at once on Ray."""

import shutil
import socket
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path

import torch

from rlcorr.analysis.budget import with_budget
from rlcorr.command.train import train_config
from rlcorr.config import CorrectionConfig
from rlcorr.errors import UsageError, first_line
from rlcorr.gradients.report import compare
from rlcorr.records import runs, study
from rlcorr.records.recipes import expand_runs_folder
from rlcorr.records.sketch_files import read_gradients
from rlcorr.records.study import ORIGIN, Arm, Study, TrainedArm, write_trained
from rlcorr.train.config.training import TrainConfig
from rlcorr.types import TokenBatch

PROGRAM = "python -m rlcorr study"
RETRIES = 3
"""How often Ray starts a training run again, if its worker or node is lost. A run that fails is not started again."""
PATIENCE = 5.0
"""Seconds to wait for a connection to the address of a cluster; Ray itself would try for minutes."""


# --- one training run ---


def arm_config(arm: Arm) -> TrainConfig:
    """Return the configuration of the training run of an arm."""
    return train_config(expand_runs_folder(arm.options), PROGRAM)


def train_arm(of_study: Study, arm: Arm) -> TrainedArm:
    """Train one arm, and return the rows of its steps. The recorded run is deleted."""
    from rlcorr.train.loop import train
    from rlcorr.train.reference_kl import reference_kl

    config = arm_config(arm)
    shutil.rmtree(runs.LOCAL / config.run, ignore_errors=True)
    run = train(config)
    manifest = runs.read_manifest(run)
    about = {key: getattr(manifest, key) for key in ORIGIN}
    about["progress"] = {str(step): progress_of_arms(run, step, of_study) for step in runs.list_sketches(run)}
    rows = study.run_rows(run, arm)
    if of_study.kl_answers:
        rows[-1] |= reference_kl(config, run / "checkpoint", of_study.kl_answers)
    shutil.rmtree(run)
    return rows, about


def progress_of_arms(run: Path, step: int, of_study: Study) -> dict[str, list[float]]:
    """Return η of every arm on the sketch of this step, as [value, low, high].

    η is for the batch size of the training run. Arms that reject at random are left out. For an arm with a budget, the
    bound is computed on the responses of this step.
    """
    configs = {arm.name: arm_config(arm) for arm in of_study.arms}
    configs = {name: config for name, config in configs.items() if not config.budget.at_random}
    batch = runs.read_step(run, step).batch
    corrections = [_correction_on(batch, config) for config in configs.values()]
    sizes = (len(batch.response_mask),)
    reports = compare(*read_gradients(run, step), corrections, batch_sizes=sizes).reports
    return {name: list(asdict(report.progress[0]).values()) for name, report in zip(configs, reports, strict=True)}


def _correction_on(batch: TokenBatch, config: TrainConfig) -> CorrectionConfig:
    budget = config.budget
    return with_budget(batch, config.correction, budget.rule, budget.keep) if budget.rule else config.correction


def train_here(of_study: Study, arms: Sequence[Arm]) -> Iterator[Arm]:
    """Train the arms one after the other in this process, and yield each one when its file is written."""
    torch.set_num_threads(1)  # as on Ray: another number would change the results
    for arm in arms:
        write_trained(of_study, arm, train_arm(of_study, arm))
        yield arm


# --- on Ray, which is an optional package ---


def train_on_ray(of_study: Study, arms: Sequence[Arm], address: str, gpus: float) -> Iterator[Arm]:
    """Train all arms as Ray tasks, and yield each one as soon as its file is written.

    Every task takes one core and `gpus` of a GPU. The files are written by this process, so the nodes need no shared
    disk. Raises `UsageError` if no Ray answers at the address, or a training run fails. When this function ends, for
    any reason, it cancels the other tasks.
    """
    import ray
    from ray.exceptions import RayError

    _connect(address)
    train = ray.remote(num_cpus=1, num_gpus=gpus, max_retries=RETRIES, max_calls=1)(train_arm)
    running = {train.remote(of_study, arm): arm for arm in arms}
    try:
        while running:
            (done, *_), _ = ray.wait(list(running))
            arm = running.pop(done)
            try:
                trained = ray.get(done)
            except RayError as error:
                raise UsageError(f"{arm.label} failed on Ray: {str(error).strip().splitlines()[-1]}") from error
            write_trained(of_study, arm, trained)
            yield arm
    finally:
        for task in running:
            ray.cancel(task, force=True)
        ray.shutdown()


def _connect(address: str) -> None:
    """Join the cluster at this address, or start Ray on this machine if the address is empty."""
    import ray

    host, _, port = address.removeprefix("ray://").rpartition(":")
    try:
        if port.isdigit():
            socket.create_connection((host, int(port)), PATIENCE).close()
        ray.init(address=address or "local", include_dashboard=None if address else False, log_to_driver=False)
    except (OSError, RuntimeError, ValueError) as error:
        raise UsageError(f"no Ray answers at {address!r} ({first_line(error)}).") from error
