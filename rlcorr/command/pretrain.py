"""`python -m rlcorr pretrain`: train a small model on right answers, from which later runs start."""

from rlcorr.command.train import configured
from rlcorr.train.config.pretraining import PretrainConfig


def run_pretrain(words: list[str]) -> int:
    """Make the model from the words after the verb, and return the exit code."""
    config = configured(PretrainConfig, words, "python -m rlcorr pretrain")
    from rlcorr.train.pretrain import pretrain

    print(f"recorded in {pretrain(config)}")
    return 0
