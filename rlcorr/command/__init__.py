"""The command line, `python -m rlcorr VERB`, and how the app starts, follows and stops training runs."""

from rlcorr.errors import require_extra

require_extra("data", "tqdm", "tyro", "yaml")
