"""A real disk that is full or read-only: one sentence, nothing half-written, and older steps stay good."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from processes import environment
from tiny import save_tiny_model

from rlcorr.records.verify import verify

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="mounts a small disk in a namespace of its own"),
]
NAMESPACE = ["unshare", "--mount"] if sys.platform == "linux" and os.geteuid() == 0 else ["unshare", "-r", "--mount"]
TRAIN = (
    "--rollout.engine transformers --steps 100000 --record-every 1 --prompts-per-step 4 --samples-per-prompt 2 "
    "--eval-prompts 4 --eval-every 100000 --checkpoint-every 0 --no-save-model --no-tensorboard"
)


def on_small_disk(tmp_path: Path, size: str, script: str) -> subprocess.CompletedProcess[str]:
    """Run shell commands with a disk of this size at $DISK, which holds the runs. What is in $DISK at the end is copied
    to `tmp_path / "kept"`, because the disk ends with the namespace."""
    disk, kept = tmp_path / "disk", tmp_path / "kept"
    disk.mkdir()
    whole = (
        f'mount -t tmpfs -o size={size} none "$DISK" && mkdir -p "$DISK/local"\n{script}\ncp -r "$DISK/local" {kept}'
    )
    variables = environment(disk) | {"DISK": str(disk), "PYTHON": sys.executable}
    return subprocess.run(
        [*NAMESPACE, "sh", "-c", whole], capture_output=True, text=True, env=variables, timeout=300, check=False
    )


def test_import_onto_a_full_disk(tmp_path: Path) -> None:
    """Check 1.6 MB of random pairs on a disk of 500 kB, and afterwards a small file under the same name."""
    rng, masks = np.random.default_rng(0), np.ones((100, 2000))
    for name, size in (("large", 100), ("small", 2)):
        pairs = -rng.random((2, size, 2000), np.float32)
        np.savez(
            tmp_path / f"{name}.npz", rollout_log_probs=pairs[0], old_log_probs=pairs[1], response_mask=masks[:size]
        )
    done = on_small_disk(
        tmp_path, "500k",
        f'"$PYTHON" -m rlcorr import {tmp_path}/large.npz --run mine; echo "code $?"; ls -A "$DISK/local"; '
        f'"$PYTHON" -m rlcorr import {tmp_path}/small.npz --run mine; echo "code $?"',
    )  # fmt: skip
    assert done.stdout.splitlines()[0] == "code 2"
    assert done.stdout.splitlines()[-1] == "code 0"
    (sentence,) = done.stderr.splitlines()
    assert sentence.startswith("rlcorr: ")
    assert sentence.endswith("cannot be written: No space left on device.")
    assert [path.name for path in (tmp_path / "kept").iterdir()] == ["mine"]
    assert verify(tmp_path / "kept" / "mine").problems == []


def test_a_training_run_that_fills_the_disk(tmp_path: Path) -> None:
    save_tiny_model(tmp_path / "model")
    done = on_small_disk(
        tmp_path, "400k", f'"$PYTHON" -m rlcorr train --model {tmp_path}/model --run mine {TRAIN}; echo "code $?"'
    )
    assert done.stdout.splitlines()[-1] == "code 2"
    assert done.stderr.splitlines()[-1].endswith("cannot be written: No space left on device.")
    assert "Traceback" not in done.stderr
    run = tmp_path / "kept" / "mine"
    report = verify(run)
    assert report.readable_steps == report.recorded_steps > 3
    assert report.metric_rows >= report.recorded_steps - 1
    assert not [*run.rglob("*.tmp")]
