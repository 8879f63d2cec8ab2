"""Ctrl-C in the middle of a checkpoint is Ctrl-C, and the checkpoint before it stays."""

import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

# torch.save into an open file ends such a process with "unexpected pos" or an abort, once in some ten interrupts.
SCRIPT = """
import random, signal, sys
from pathlib import Path
import torch
from rlcorr.train.session.checkpoint import Checkpoint, read_checkpoint, write_checkpoint

folder, weights = Path(sys.argv[1]), {f"w{n}": torch.ones(100_000) for n in range(12)}
checkpoint = Checkpoint(1, 0.5, 0, weights, {}, {}, torch.zeros(1), torch.zeros(1), [])
write_checkpoint(folder, checkpoint)

def interrupt(*_):
    raise KeyboardInterrupt

signal.signal(signal.SIGALRM, interrupt)
chance = random.Random(0)
for _ in range(50):
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.0005 + 0.01 * chance.random())
        write_checkpoint(folder, checkpoint)
        signal.setitimer(signal.ITIMER_REAL, 0)
        print("written")
    except KeyboardInterrupt:
        print("interrupted")
    assert read_checkpoint(folder, torch.device("cpu")).policy.keys() == weights.keys()
"""


@pytest.mark.slow
def test_an_interrupt_while_a_checkpoint_is_written_stays_an_interrupt(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(tmp_path)], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    counts = Counter(done.stdout.split())
    assert sum(counts.values()) == 50
    assert counts["interrupted"] > 10
