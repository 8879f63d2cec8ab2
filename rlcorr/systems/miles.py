"""miles' flags and mis.yaml from ours: those of slime, with two other paths.

Source: miles/backends/training_utils/loss_hub/corrections.py (commit 10944efb) and
examples/infra_features/train_infer_mismatch_helper/mis.py (commit 6cf5331c).
"""

from typing import Any

from rlcorr.config import CorrectionConfig
from rlcorr.systems import slime
from rlcorr.systems.mapping.refusals import renamed

ICEPOP = "miles.backends.training_utils.loss_hub.corrections.icepop_function"
MIS_PATH = "examples.infra_features.train_infer_mismatch_helper.mis.compute_mis_weights_with_cp"
_PATH = "custom_tis_function_path"


def to_miles(config: CorrectionConfig) -> dict[str, Any]:
    """Return miles' flags, or, if needed, the keys of mis.yaml. Raises `UsageError` for what miles cannot do."""
    with renamed("slime", "miles"):
        fields = slime.plain_flags(config)
    return fields | ({_PATH: ICEPOP} if _PATH in fields else {})


def miles_text(config: CorrectionConfig) -> str:
    """Return the flags, and mis.yaml if it is needed. Raises `UsageError` as `to_miles` does."""
    return slime.flags_text(to_miles(config), "miles", MIS_PATH)
