"""axolotl's `trl:` block from ours (0.21.0 with TRL 1.14.1): TRL's arguments in YAML.

A key that is null is not handed to TRL, which then takes its own default. So there is no way to write TRL's None, and
an infinite clip_max means no bound. The text is for the default trainer: with async_prefetch or use_data_producer,
axolotl's own trainer weighs, and a weight below 1/cap becomes 1/cap.

Source: axolotl 0.21.0, core/trainers/grpo/__init__.py:195-238, core/trainers/grpo/async_trainer.py:158-187, 893-911,
1920-1950, core/builders/rl.py:82-91 and utils/schemas/trl.py.
"""

import math
from typing import Any

from rlcorr.config import CorrectionConfig
from rlcorr.errors import UsageError
from rlcorr.systems.mapping.refusals import renamed
from rlcorr.systems.trl import to_trl

_IS = "vllm_importance_sampling"


def to_axolotl(config: CorrectionConfig) -> dict[str, Any]:
    """Return the `trl:` block for the default trainer. Raises `UsageError` for what axolotl cannot do."""
    if config.loss_type == "vespo":
        raise UsageError("axolotl's trl has no numbers of VESPO; nearest: loss_type='ppo_clip', or TRL itself.")
    with renamed("TRL", "axolotl"):
        fields = to_trl(config)
    if fields.get(f"{_IS}_clip_max", 0) is None:
        # `to_trl` masks where there is no bound at all, because torch clamps to a number only; infinity is one.
        fields |= {f"{_IS}_clip_max": math.inf, f"{_IS}_mode": f"{config.rollout_is}_{config.rollout_is_mode}"}
    return {name: value for name, value in fields.items() if value is not None}
