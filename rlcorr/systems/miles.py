"""miles' flags and mis.yaml from ours: those of slime, with two other paths.

Source: miles/backends/training_utils/loss_hub/corrections.py (commit 10944efb) and
examples/infra_features/train_infer_mismatch_helper/mis.py (commit 6cf5331c).
"""

from typing import Any

from rlcorr.config import CorrectionConfig
from rlcorr.systems import slime
from rlcorr.systems.mapping.facts import FACTS
from rlcorr.systems.mapping.refusals import renamed

ICEPOP = "miles.backends.training_utils.loss_hub.corrections.icepop_function"
MIS_PATH = "examples.infra_features.train_infer_mismatch_helper.mis.compute_mis_weights_with_cp"
PATHS = {slime.ICEPOP: ICEPOP, slime.MIS_PATH: MIS_PATH}
"""Path of a function in slime → the one in miles."""
_NAMES = {**PATHS, "slime": "miles"}
_PATH = "custom_tis_function_path"


def to_miles(config: CorrectionConfig) -> dict[str, Any]:
    """Return miles' flags, or, if needed, the keys of mis.yaml. Raises `UsageError` for what miles cannot do.

    >>> to_miles(CorrectionConfig(rollout_is="token", rollout_is_mode="mask"))["custom_tis_function_path"]
    'miles.backends.training_utils.loss_hub.corrections.icepop_function'
    """
    with renamed(_NAMES):
        fields = slime.plain_flags(config)
    return fields | ({_PATH: PATHS[fields[_PATH]]} if _PATH in fields else {})


def miles_text(config: CorrectionConfig) -> str:
    """Return the flags, and mis.yaml if it is needed. Raises `UsageError` as `to_miles` does."""
    with renamed(_NAMES):
        text = slime.flags_text(slime.plain_flags(config), FACTS["miles"].comment)
    for name, replacement in _NAMES.items():
        text = text.replace(name, replacement)
    return text
