"""The memory of this process."""

import resource
import sys
from pathlib import Path

MIB = 1 << 20


def peak() -> int:
    """The most memory that this process ever had, in bytes. Elsewhere than on a Mac ru_maxrss begins with the size of
    the process that started this one."""
    if sys.platform == "darwin":
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return 1024 * int(Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0])
