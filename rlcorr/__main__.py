"""`python -m rlcorr VERB`. Sets what OpenMP and PyTorch read at import, before anything imports them."""

import os

os.environ.setdefault("OMP_NUM_THREADS", str(os.cpu_count()))  # vLLM would lower torch's threads, and not say so
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # threads that spin would slow everything beside them, the app too
os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

from rlcorr.command.cli import main

if __name__ == "__main__":
    main()
