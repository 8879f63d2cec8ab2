"""The training run of a real model that a page starts with one click, as options of `python -m rlcorr train`."""

from rlcorr.train.config.packaged import has_fast_bfloat16

REAL_MODEL = (
    *("--model", "smollm2", "--steps", "20", "--eval-prompts", "32"),
    *("--checkpoint-every", "0", "--no-save-model", "--no-tensorboard"),
)  # fmt: skip
"""Options of the training run of a real model. It saves no weights."""


def real_model_options() -> tuple[str, ...]:
    """Return `REAL_MODEL`, with a trainer in float32 where bfloat16 is too slow to wait for."""
    return REAL_MODEL if has_fast_bfloat16() else (*REAL_MODEL, "--optim.precision", "float32")


def real_model_megabytes() -> int:
    """Return the size of the download before the real model can be trained, in MB; 0 if it is on this machine."""
    from rlcorr.train.inputs.smollm2 import megabytes_to_fetch

    return megabytes_to_fetch()
