"""The memory of this process, and processes of their own whose memory is measured."""

import os
import resource
import subprocess
import sys
from pathlib import Path

MIB = 1 << 20


def peak() -> int:
    """The most memory that this process ever had, in bytes. Elsewhere than on a Mac ru_maxrss begins with the size of
    the process that started this one."""
    if sys.platform == "darwin":
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return 1024 * int(Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0])


def in_another_process(code: str, *words: object) -> str:
    """Run the code with these words as arguments, and return what it prints. It may import what tests may."""
    command = [sys.executable, "-c", code, *map(str, words)]
    paths = {"PYTHONPATH": os.pathsep.join(sys.path)}
    return subprocess.run(command, env=os.environ | paths, capture_output=True, text=True, check=True).stdout
