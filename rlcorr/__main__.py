"""The command line, `rlcorr VERB` or `python -m rlcorr VERB`.

OpenMP, PyTorch and Arrow read these environment variables at import, so they are set before anything imports them.
"""

import os
import sys

os.environ.setdefault("OMP_NUM_THREADS", str(os.cpu_count()))  # otherwise vLLM silently gives torch fewer threads
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # spinning threads would slow down other processes, such as the app
os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "system")  # Arrow's own keeps 50 MiB more during an import
os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")  # large tensors get pages of 2 MiB, which are cleared faster

from rlcorr.errors import MissingExtra


def main() -> None:
    """Run the command line; without the packages that it needs, print the command that installs them."""
    try:
        from rlcorr.command import cli
    except MissingExtra as error:
        sys.exit(f"rlcorr: {error}")
    cli.main()


if __name__ == "__main__":
    main()
