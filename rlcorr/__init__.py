"""See, and tune, the correction of the gap between the policy that samples tokens and the policy that is trained.

from rlcorr import TokenBatch, evaluate, preset
result, numbers = evaluate(TokenBatch.from_log_probs(old, rollout, mask), preset("decoupled_token_is"))
"""

from rlcorr.config import CorrectionConfig
from rlcorr.correction import correct
from rlcorr.measuring.measure import evaluate, measure
from rlcorr.measuring.metrics import describe, metrics
from rlcorr.presets import PRESETS, preset
from rlcorr.rules import RejectionRule
from rlcorr.systems.skyrl import from_skyrl, to_skyrl
from rlcorr.systems.verl import from_verl, to_verl
from rlcorr.types import CorrectionResult, TokenBatch

__all__ = [
    "PRESETS",
    "CorrectionConfig",
    "CorrectionResult",
    "RejectionRule",
    "TokenBatch",
    "correct",
    "describe",
    "evaluate",
    "from_skyrl",
    "from_verl",
    "measure",
    "metrics",
    "preset",
    "to_skyrl",
    "to_verl",
]
