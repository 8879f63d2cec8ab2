"""Presets: the corrections of public systems for π_old ≠ π_rollout, with the numbers that these systems use.

verl's presets have verl's names, the others are named `<system>_<method>`. A preset may be written differently from the
system if the gradient is the same. `source` records remaining differences and non-default numbers.
"""

from rlcorr.config import CorrectionConfig
from rlcorr.errors import unknown
from rlcorr.presets.openrlhf_areal_prime_rl import AREAL_PRESETS, OPENRLHF_PRESETS, PRIME_RL_PRESETS
from rlcorr.presets.other_systems import NEMO_RL_PRESETS, OTHER_PRESETS, ROLL_PRESETS, SLIME_PRESETS, TRL_PRESETS
from rlcorr.presets.papers import CTPO_PRESETS, SAO_PRESETS
from rlcorr.presets.parts import Preset
from rlcorr.presets.verl_skyrl import SKYRL_PRESETS, VERL_PRESETS

PRESETS: dict[str, Preset] = (
    VERL_PRESETS
    | SKYRL_PRESETS
    | OPENRLHF_PRESETS
    | AREAL_PRESETS
    | TRL_PRESETS
    | PRIME_RL_PRESETS
    | SLIME_PRESETS
    | NEMO_RL_PRESETS
    | ROLL_PRESETS
    | OTHER_PRESETS
    | SAO_PRESETS
    | CTPO_PRESETS
)
"""Name → preset. Presets of one system are neighbours, and pickers show this order."""

RANKED = tuple(name for name, entry in PRESETS.items() if not entry.loss.score_centering)
"""Names of the presets whose gradient follows from weights and rejection. Score centering changes the loss instead."""


def preset(name: str) -> CorrectionConfig:
    """Return the configuration with this name. Raises `UsageError`, with the nearest name, if there is none.

    >>> preset("decoupled_token_is").rollout_is_threshold
    2.0
    >>> PRESETS["decoupled_token_is"].fails_when
    'large mismatch: all ratios beyond the cap get the same weight, which biases the gradient'
    """
    if name not in PRESETS:
        raise unknown("preset", name, PRESETS)
    return PRESETS[name].config
