"""Show and tune the correction of the mismatch between the policy that samples tokens and the policy that is trained.

from rlcorr import TokenBatch, evaluate, preset
result, numbers = evaluate(TokenBatch.from_log_probs(old, rollout, mask), preset("decoupled_token_is"))
"""

from rlcorr.config import CorrectionConfig, LossConfig
from rlcorr.correction import correct
from rlcorr.errors import UsageError
from rlcorr.losses.objective import policy_loss
from rlcorr.measuring.measure import evaluate, measure
from rlcorr.measuring.metrics import describe, metrics
from rlcorr.presets import PRESETS, preset
from rlcorr.rules import RejectionRule
from rlcorr.systems.export import export
from rlcorr.systems.skyrl import from_skyrl, to_skyrl
from rlcorr.systems.verl import from_verl, to_verl
from rlcorr.types import CorrectionResult, TokenBatch

__all__ = [
    "PRESETS",
    "CorrectionConfig",
    "CorrectionResult",
    "LossConfig",
    "RejectionRule",
    "TokenBatch",
    "UsageError",
    "correct",
    "describe",
    "evaluate",
    "export",
    "from_skyrl",
    "from_verl",
    "measure",
    "metrics",
    "policy_loss",
    "preset",
    "to_skyrl",
    "to_verl",
]
