"""axolotl's `trl:` block as ours and back (0.21.0 with TRL 1.14.1): TRL's arguments in YAML.

A key that is null is not handed to TRL, which then takes its own default. So there is no way to write TRL's None, and
an infinite clip_max means no bound.

With async_prefetch or use_data_producer, axolotl's own trainer weighs instead of TRL's. It has another default mode and
a cap instead of two bounds, and its truncation also clamps below, at 1/cap. Its masks clamp below, too, after masking:
a rejected ratio becomes 1/cap instead of 0.

Source: axolotl 0.21.0, core/trainers/grpo/__init__.py:195-238, core/trainers/grpo/async_trainer.py:158-187, 893-911,
1920-1950, core/builders/rl.py:82-91 and utils/schemas/trl.py.
"""

import math
from collections.abc import Mapping
from typing import Any

from rlcorr.config import CorrectionConfig
from rlcorr.errors import UsageError
from rlcorr.systems.mapping.keys import choice, known_keys, number, options, refuse_ignored, switch
from rlcorr.systems.mapping.refusals import renamed
from rlcorr.systems.mapping.serialize import as_yaml, commented
from rlcorr.systems.trl import OPSM, PPO_CLIPS, cap_as_clip_max, from_trl, to_trl

_IS = "vllm_importance_sampling"
_NAMES = {"TRL's GRPOConfig": "axolotl's trl", "TRL": "axolotl"}
SWITCHES = ("async_prefetch", "use_data_producer")
"""Each of them turns on the asynchronous trainer."""
ASYNC_FIELDS: dict[str, Any] = {
    "use_vllm": False,
    "loss_type": "dapo",
    f"{_IS}_correction": True,
    f"{_IS}_mode": "token_truncate",
    f"{_IS}_cap": 3.0,
    "off_policy_mask_threshold": None,
}
"""Keys of the asynchronous trainer, with its defaults."""
ASYNC = f"for the default trainer: with {' or '.join(SWITCHES)} the weights are clamped below at 1/cap as well"


def from_axolotl(source: Mapping[str, Any]) -> CorrectionConfig:
    """Return the configuration of axolotl's `trl:` block, as `from_trl` does.

    `source` is a mapping with or without `trl` around it. Raises `UsageError` as `from_trl` does, and for the masks of
    the asynchronous trainer.

    >>> from_axolotl({"trl": {"use_vllm": True, "vllm_importance_sampling_mode": "token_mask"}}).rollout_is_mode
    'mask'
    >>> from_axolotl({"use_vllm": True, "async_prefetch": True}).rollout_is_threshold_lower  # 1/3
    0.3333333333333333
    """
    source = options("axolotl's trl", source, ("trl",))
    known_keys("axolotl's trl", source, source if isinstance(source, Mapping) else ())
    given = {name: value for name, value in source.items() if value is not None}
    is_async = [switch(name, given.pop(name, False)) for name in SWITCHES]
    if any(is_async):
        return _from_async(given)
    with renamed(_NAMES):
        return from_trl({"use_vllm": False} | cap_as_clip_max("axolotl", given))


def _from_async(given: dict[str, Any]) -> CorrectionConfig:
    known_keys("axolotl's trl with the asynchronous trainer", given, ASYNC_FIELDS)
    values = ASYNC_FIELDS | given
    if values["off_policy_mask_threshold"] is not None or values["loss_type"] not in PPO_CLIPS:
        raise UsageError(
            "of axolotl's asynchronous trainer only the weights of PPO's clip are read: leave out loss_type and "
            "off_policy_mask_threshold."
        )
    names = [f"{_IS}_mode", f"{_IS}_cap"]
    if not (switch("use_vllm", values["use_vllm"]) and switch(f"{_IS}_correction", values[f"{_IS}_correction"])):
        refuse_ignored("axolotl", values, ASYNC_FIELDS, names, f"without use_vllm and {_IS}_correction")
        return CorrectionConfig()
    modes = [f"{level}_{mode}" for level in ("token", "sequence") for mode in ("truncate", "mask")]
    kind, mode = choice(names[0], values[names[0]], modes).split("_")
    if mode == "mask":
        raise UsageError(
            f"axolotl's asynchronous trainer raises a masked ratio to 1/cap, so nothing is rejected; nearest: "
            f"{kind}_truncate, or the default trainer."
        )
    level: str = "token" if kind == "token" else "sequence"
    cap = number(names[1], values[names[1]])
    return CorrectionConfig(rollout_is=level, rollout_is_threshold=cap, rollout_is_threshold_lower=1 / cap)


def to_axolotl(config: CorrectionConfig) -> dict[str, Any]:
    """Return the `trl:` block for the default trainer. Raises `UsageError` for what axolotl cannot do.

    >>> to_axolotl(CorrectionConfig(rollout_is="token", rollout_is_threshold=2.0))["vllm_importance_sampling_clip_max"]
    2.0
    """
    if config.loss_type == "vespo":
        raise UsageError("axolotl's trl has no numbers of VESPO; nearest: loss_type='ppo_clip', or TRL itself.")
    with renamed(_NAMES):
        fields = to_trl(config)
    if fields.get(f"{_IS}_clip_max", 0) is None:
        # `to_trl` masks where there is no bound at all, because torch clamps to a number only; infinity is one.
        fields |= {f"{_IS}_clip_max": math.inf, f"{_IS}_mode": f"{config.rollout_is}_{config.rollout_is_mode}"}
    return {name: value for name, value in fields.items() if value is not None}


def axolotl_text(config: CorrectionConfig) -> str:
    """Return YAML under `trl`. Raises `UsageError` as `to_axolotl` does."""
    fields = to_axolotl(config)
    notes = [OPSM] if "off_policy_mask_threshold" in fields else []
    return commented(as_yaml("trl", fields), ["axolotl 0.21.0", ASYNC, *notes])
