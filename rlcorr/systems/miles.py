"""miles' flags and mis.yaml as ours and back: those of slime, with two other paths and two other defaults.

Source: miles/backends/training_utils/loss_hub/corrections.py (commit 10944efb) and
examples/infra_features/train_infer_mismatch_helper/mis.py (commit 6cf5331c): use_rs and tis_batch_normalize are False
if mis.yaml does not have them. Its correction with π_θ in the numerator, off_policy_is_function, is not read.
"""

from collections.abc import Mapping
from typing import Any

from rlcorr.config import CorrectionConfig
from rlcorr.errors import UsageError
from rlcorr.systems import slime
from rlcorr.systems.mapping.keys import options
from rlcorr.systems.mapping.refusals import renamed

ICEPOP = "miles.backends.training_utils.loss_hub.corrections.icepop_function"
MIS_PATH = "examples.infra_features.train_infer_mismatch_helper.mis.compute_mis_weights_with_cp"
PATHS = {slime.ICEPOP: ICEPOP, slime.MIS_PATH: MIS_PATH}
"""Path of a function in slime → the one in miles."""
VERSION = "miles, commits 10944efb and 6cf5331c"
_NAMES = {**PATHS, slime.VERSION: VERSION, "slime": "miles"}
MIS_DEFAULTS = {"use_rs": False, "tis_batch_normalize": False}
"""Defaults of mis.py that differ from the values in slime's mis.yaml."""
_PATH = "custom_tis_function_path"


def from_miles(source: Mapping[str, Any]) -> CorrectionConfig:
    """Return the configuration of miles' flags, or of the keys of mis.yaml, as `from_slime` does.

    Raises `UsageError` as `from_slime` does, and for slime's own paths, which miles does not have.

    >>> from_miles({"--use-tis": True, "--tis-clip": 4.0}).rollout_is_threshold
    4.0
    """
    source = options("miles' correction", source)
    if isinstance(source, Mapping):
        if source.keys() & (slime.MIS.keys() - {"use_tis"}):
            source = {**MIS_DEFAULTS, **source}
        elif (path := source.get(_PATH)) is not None:
            if path in PATHS:
                raise UsageError(f"{_PATH} {path} is a function of slime; in miles it is {PATHS[path]}.")
            in_slime = {miles_path: slime_path for slime_path, miles_path in PATHS.items()}
            source = {**source, _PATH: in_slime.get(path, path)}
    with renamed(_NAMES):
        return slime.read(source, slime.FLAGS)


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
        text = slime.flags_text(slime.plain_flags(config))
    for name, replacement in _NAMES.items():
        text = text.replace(name, replacement)
    return text
