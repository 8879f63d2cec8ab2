"""Score centering in SkyRL's text: trainer.algorithm.score_centering, with the losses that it is defined for.

SkyRL takes it with the loss reinforce, −A log π_θ, and with rollout_is, whose weight is π_θ/π_rollout inside a band and
0 outside. It refuses a weight of off_policy_correction next to it. The head is the sampler's top_k likeliest tokens.

Source: pull request 2244 by SkyRL's maintainers at commit f16f5eae (skyrl/train/config/config.py, ScoreCenteringConfig,
and skyrl/train/utils/utils.py, validate_score_centering_cfg), read on 27 November 2026. The notes of release 0.5.0 say
that score centering is on by default for compatible losses. The code of the release could not be read: its package was
not on the index, so its names may differ, and it may center the scores of more losses.
"""

import math
from collections.abc import Mapping
from typing import Any

from rlcorr.config import CorrectionConfig
from rlcorr.errors import UsageError
from rlcorr.losses.score_centering import check_centering
from rlcorr.systems.mapping.keys import known_keys, switch
from rlcorr.systems.mapping.serialize import as_yaml, commented

CENTERING = "score_centering"
FIELDS = {"enabled": False, "top_k": 32, "tail_eps": 1e-6}
NOTE = "names of pull request 2244 (commit f16f5eae), because the code of 0.5.0 could not be read"


def refuse_centered(algorithm: Any) -> Any:
    """Return the mapping of `trainer.algorithm` without score_centering.

    Raises `UsageError` if it is enabled: it is a part of our LossConfig, not of a correction.

    >>> refuse_centered({"score_centering": {"enabled": False}, "use_tis": False})
    {'use_tis': False}
    """
    if not isinstance(algorithm, Mapping) or CENTERING not in algorithm:
        return algorithm
    fields = algorithm[CENTERING] or {}
    known_keys("SkyRL's score_centering", fields, FIELDS)
    if switch(f"{CENTERING}.enabled", fields.get("enabled", False)):
        raise UsageError("score_centering belongs to the loss: leave it out, and set LossConfig(score_centering=True).")
    return {name: value for name, value in algorithm.items() if name != CENTERING}


def to_skyrl_centered(config: CorrectionConfig) -> dict[str, Any]:
    """Return the keys of `trainer.algorithm` for a policy gradient with score centering.

    Raises `UsageError` for what SkyRL does not combine with it.

    >>> to_skyrl_centered(CorrectionConfig(bypass_mode=True, loss_type="reinforce"))["policy_loss_type"]
    'reinforce'
    """
    check_centering(config)
    if not config.bypass_mode or config.loss_type != "reinforce":
        raise UsageError(
            "SkyRL centers the scores of its losses reinforce and rollout_is, next to which it refuses tis_ratio_type; "
            "nearest: bypass_mode=True with loss_type='reinforce'."
        )
    centering = {"off_policy_correction": {"tis_ratio_type": None}, CENTERING: FIELDS | {"enabled": True}}
    if config.rollout_is is None:
        return {"policy_loss_type": "reinforce"} | centering
    low, high = config.rollout_is_threshold_lower or 0.0, float(config.rollout_is_threshold)
    if config.rollout_is_mode != "mask" or not 0 <= low < 1 < high < math.inf:
        raise UsageError(
            "SkyRL's rollout_is sets token weights outside a band around 1 to 0; nearest: rollout_is_mode='mask' with "
            "a lower bound below 1 and a finite upper bound above 1, or rollout_is=None (reinforce)."
        )
    band = {"eps_clip_low": float(f"{1 - low:.12g}"), "eps_clip_high": float(f"{high - 1:.12g}")}
    return {"policy_loss_type": "rollout_is"} | band | centering


def skyrl_centered_text(config: CorrectionConfig) -> str:
    """Return YAML with score centering. Raises `UsageError` as `to_skyrl_centered` does."""
    return commented(as_yaml("", {"trainer": {"algorithm": to_skyrl_centered(config)}}), ["SkyRL 0.5.0", NOTE])
