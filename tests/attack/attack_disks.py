"""Imports, training runs and dropped files on a small disk of their own, which fills at some moment or is read-only."""

import json
import os
import subprocess
import sys
from pathlib import Path

from attempts import Attack

IMPORTS, TRAINED, DROPPED, READ_ONLY = 40, 10, 30, 12
NAMESPACE = ["unshare", "--mount"] if os.geteuid() == 0 else ["unshare", "-r", "--mount"]


def attack(attack: Attack) -> None:
    """Make all attempts in one process that may mount disks: it has a namespace of its own."""
    if sys.platform != "linux":
        attack.notes.append("Disks are only mounted on Linux, so none was filled.")
        return
    counts = {"import": IMPORTS, "train": TRAINED, "drop": DROPPED, "read-only": READ_ONLY}
    jobs = [
        {"number": number, "kind": kind, "seed": chance.random()}
        for kind, count in counts.items()
        for number, chance in attack.attempts(count)
    ]
    worker, disk = Path(__file__).with_name("disk_worker.py"), attack.folder / "disk"
    disk.mkdir()
    variables = os.environ | {"RLCORR_RUNS": str(disk), "DISK": str(disk), "TMPDIR": str(disk)}
    process = subprocess.Popen(
        [*NAMESPACE, sys.executable, str(worker), str(attack.folder)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=variables, text=True,
    )  # fmt: skip
    output, _ = process.communicate("\n".join(map(json.dumps, jobs)))
    outcomes = {row["number"]: row for row in map(json.loads, output.splitlines())}
    for job in jobs:
        row = outcomes.get(job["number"], {"what": job["kind"], "problem": f"it ended with {process.returncode}"})
        attack.judge(job["number"], row["what"], row["problem"])
