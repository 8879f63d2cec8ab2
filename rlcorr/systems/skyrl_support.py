"""SkyRL's replay of the sampler's support, which is our trainer's option rollout.support_replay (0.4.0).

With trainer.algorithm.enable_sample_support_replay, SkyRL divides the trainer's probabilities by their sum over the
tokens that the sampler could draw. generator.inference_engine.enable_return_sample_support_set records these tokens.
Both change the log-probs before the correction sees them, so they are no part of a correction.

Source: SkyRL 0.4.0, skyrl/train/config/config.py:1000-1002, 1257, 1862-1900.
"""

from collections.abc import Mapping
from typing import Any

from rlcorr.errors import UsageError
from rlcorr.systems.mapping.keys import known_keys, options, switch

REPLAY = "enable_sample_support_replay"
LOG_PROBS = "logprobs"
"""Key of generator.sampling_params. SkyRL sets it to 1, with a warning, for weights and sequence masks only."""
CAPTURE = "enable_return_sample_support_set"


def support_replay(source: Any) -> bool:
    """Return rollout.support_replay of our trainer for a mapping of SkyRL's configuration.

    `source` may have the keys that `from_skyrl` reads, and `generator` next to `trainer`. Raises `UsageError` for other
    keys of `generator`, and for a replay of what is not recorded, which SkyRL refuses.

    >>> support_replay({"trainer.algorithm.enable_sample_support_replay": True})
    True
    """
    return split_support(source)[0]


def split_support(source: Any) -> tuple[bool, Any]:
    """Return whether the support is replayed, and the configuration without the two switches and the log-probs' key.

    Raises `UsageError` as `support_replay` does.

    >>> split_support({"algorithm": {"enable_sample_support_replay": False, "use_tis": False}})
    (False, {'algorithm': {'use_tis': False}})
    """
    if not isinstance(source, Mapping):
        return False, source
    rest = options("SkyRL's configuration", source)
    generator = rest.pop("generator", {})
    known_keys("SkyRL's generator", generator, ("inference_engine", "sampling_params"))
    _check_log_probs(generator.pop("sampling_params", {}))
    engine = generator.get("inference_engine", {})
    known_keys("SkyRL's inference_engine", engine, (CAPTURE,))
    algorithm = rest
    for parent in ("trainer", "algorithm"):
        if isinstance(algorithm.get(parent), dict):
            algorithm = algorithm[parent]
    is_replayed = switch(REPLAY, algorithm.pop(REPLAY, False))
    is_recorded = switch(CAPTURE, engine.get(CAPTURE, not generator))
    if is_replayed and not is_recorded:
        raise UsageError(f"SkyRL refuses {REPLAY} without generator.inference_engine.{CAPTURE}: true.")
    return is_replayed, rest


def _check_log_probs(sampling: Any) -> None:
    """Raise `UsageError` if the engine returns no log-probs; SkyRL then skips some corrections without a message."""
    known_keys("SkyRL's sampling_params", sampling, (LOG_PROBS,))
    if sampling.get(LOG_PROBS, 1) not in (0, 1):
        raise UsageError(
            f"generator.sampling_params.{LOG_PROBS} must be 1; got {sampling[LOG_PROBS]!r}: without it there are no "
            f"rollout_logprobs, and a token mask or an outlier mask alone does nothing."
        )
