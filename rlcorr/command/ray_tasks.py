"""Trainings of a study as Ray tasks: on this machine all cores, on a cluster all nodes."""

import socket
from collections.abc import Iterator, Sequence

import ray
from ray.exceptions import RayError

from rlcorr.command.study_training import train_arm
from rlcorr.errors import UsageError, first_line
from rlcorr.records.study import Arm, Study
from rlcorr.records.trained_arms import write_trained

RETRIES = 3
"""Of a training whose worker or node is lost. One that fails by itself is not tried again."""
PATIENCE = 5.0
"""Seconds in which something must listen at the address; Ray itself would try for minutes."""


def on_ray(study: Study, arms: Sequence[Arm], address: str, gpus: float) -> Iterator[Arm]:
    """Train all of them, each with one core and this share of a GPU, and give each as soon as its file is there; the
    files are written here, so nodes need share no disk. Raises `UsageError` where no Ray answers at the address, and
    where a training fails; whatever ends this cancels the others."""
    _connect(address)
    train = ray.remote(num_cpus=1, num_gpus=gpus, max_retries=RETRIES, max_calls=1)(train_arm)
    running = {train.remote(study, arm): arm for arm in arms}
    try:
        while running:
            (done, *_), _ = ray.wait(list(running))
            arm = running.pop(done)
            try:
                trained = ray.get(done)
            except RayError as error:
                raise UsageError(f"{arm.label} failed on Ray: {str(error).strip().splitlines()[-1]}") from error
            write_trained(study, arm, trained)
            yield arm
    finally:
        for task in running:
            ray.cancel(task, force=True)
        ray.shutdown()


def _connect(address: str) -> None:
    """Join the cluster at this address, or start Ray on this machine where there is none."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    try:
        if port.isdigit():
            socket.create_connection((host, int(port)), PATIENCE).close()
        ray.init(address=address or "local", include_dashboard=None if address else False, log_to_driver=False)
    except (OSError, RuntimeError, ValueError) as error:
        raise UsageError(f"no Ray answers at {address!r} ({first_line(error)}).") from error
