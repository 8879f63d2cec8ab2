"""Training runs that a page starts with one click, as options of `python -m rlcorr train`."""

from rlcorr.train.config.packaged import has_fast_bfloat16

REAL_MODEL = (
    *("--model", "smollm2", "--steps", "20", "--eval-prompts", "32"),
    *("--checkpoint-every", "0", "--no-save-model", "--no-tensorboard"),
)  # fmt: skip
"""Options of the training run of a real model. It saves no weights."""
SMALL_MODEL = (
    *("--preset", "decoupled_token_is", "--task", "addition", "--rollout.engine", "auto"),
    *("--rollout.dtype", "bfloat16", "--rollout.kv-cache-dtype", "auto"),
    *("--rollout.staleness", "0", "--rollout.temperature", "1.0", "--optim.learning-rate", "0.0003"),
    *("--prompts-per-step", "256", "--steps", "400", "--seed", "0"),
)  # fmt: skip
"""Options of the training run of the tiny model: the trainer's own defaults, written out so that a reader sees them."""


def real_model_options() -> tuple[str, ...]:
    """Return `REAL_MODEL`, with a trainer in float32 where bfloat16 is too slow to wait for."""
    return REAL_MODEL if has_fast_bfloat16() else (*REAL_MODEL, "--optim.precision", "float32")


def real_model_megabytes() -> int:
    """Return the size of the download before the real model can be trained, in MB; 0 if it is on this machine."""
    from rlcorr.train.inputs.smollm2 import megabytes_to_fetch

    return megabytes_to_fetch()
