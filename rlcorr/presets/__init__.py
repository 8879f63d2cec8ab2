"""Named corrections: what public systems do about π_old ≠ π_rollout, under their names and with their numbers.

verl's have verl's names, the others are `<system>_<method>`. A preset may be written in another form than the system's
where the gradient is the same; what still differs is said in its source, and so is a number that is no default.
"""

from rlcorr.config import CorrectionConfig
from rlcorr.errors import unknown
from rlcorr.presets.openrlhf_areal_prime_rl import OF_AREAL, OF_OPENRLHF, OF_PRIME_RL
from rlcorr.presets.other_systems import OF_NEMO_RL, OF_OTHERS, OF_ROLL, OF_SLIME, OF_TRL
from rlcorr.presets.parts import Preset
from rlcorr.presets.verl_skyrl import OF_SKYRL, OF_VERL

PRESETS: dict[str, Preset] = (
    OF_VERL | OF_SKYRL | OF_OPENRLHF | OF_AREAL | OF_TRL | OF_PRIME_RL | OF_SLIME | OF_NEMO_RL | OF_ROLL | OF_OTHERS
)


def preset(name: str) -> CorrectionConfig:
    """The configuration of that name. Raises `UsageError` with the nearest name.

    >>> preset("decoupled_token_is").rollout_is_threshold
    2.0
    >>> PRESETS["decoupled_token_is"].hurts
    'large mismatch: ratios beyond the cap are all treated alike, which biases the gradient'
    """
    if name not in PRESETS:
        raise unknown("preset", name, PRESETS)
    return PRESETS[name].config
