"""NeMo RL's loss_fn from ours, and its dump.

Source: v0.7.0, commit 7ea279ab, nemo_rl/algorithms/loss/loss_functions.py:111-165, 292-325, 566-690, and
nemo_rl/algorithms/grpo.py, seq_logprob_error_threshold. The fields and their defaults are the same at commit 006907a9,
after v0.7.0. Of 0.8.0 only the documentation was read: it lists the same classes of losses, but no fields. The nightly
documentation (November 2026) has loss_fn.score_centering, which the one of 0.8.0 lacks.

train_data_step{N}.jsonl has arrays over prompt and response, and two masks.
"""

import math
from typing import Any

from rlcorr.config import CorrectionConfig, LossConfig
from rlcorr.errors import UsageError
from rlcorr.losses.score_centering import check_centering
from rlcorr.rules import RejectionRule
from rlcorr.systems.mapping.facts import FACTS
from rlcorr.systems.mapping.refusals import bounds, is_unbounded, no_rule, refuse

_TIS = "truncated_importance_sampling"
CENTERING = "score_centering"
ERROR = "seq_logprob_error_threshold"


def to_nemo_rl(config: CorrectionConfig, loss: LossConfig | None = None) -> dict[str, Any]:
    """Return `loss_fn` and, if needed, `grpo`. From `loss` comes score_centering, which only nightly has.

    Raises `UsageError` for what NeMo RL cannot do.
    """
    refuse("NeMo RL", config)
    rules = {rule.name: rule for rule in config.rollout_rs}
    error, geometric = rules.pop("seq_mean_mult_error", None), rules.pop("seq_mean_k1", None)
    if rules:
        raise no_rule("NeMo RL", next(iter(rules.values())), "seq_mean_k1 with raw weights, or seq_mean_mult_error")
    fields = FACTS["NeMo RL"].fields | _loss_fields(config, geometric)
    if loss is not None and loss.score_centering:
        check_centering(config)
        fields[CENTERING] = True
    loss_fn: dict[str, Any] = {"loss_fn": fields}
    return loss_fn | ({} if error is None else {"grpo": {ERROR: float(error.upper)}})


def _loss_fields(config: CorrectionConfig, geometric: RejectionRule | None) -> dict[str, Any]:
    on = {"use_importance_sampling_correction": True}
    if geometric is not None:
        if not is_unbounded(config):
            raise UsageError(
                "NeMo RL's seq-mask-tis weighs kept tokens with raw ratios; nearest: token, rollout_is_threshold=inf."
            )
        low, high = bounds(geometric)
        if high == math.inf:
            raise no_rule("NeMo RL", geometric, "an upper bound of 1e9")
        return on | {f"{_TIS}_type": "seq-mask-tis", f"{_TIS}_ratio": high, f"{_TIS}_ratio_min": low}
    if config.rollout_is is None:
        return {}
    if config.rollout_is != "token":
        raise UsageError(f"NeMo RL's weights are token ratios; nearest: rollout_is='token'; got {config.rollout_is!r}.")
    if is_unbounded(config):
        return on
    low, high = config.rollout_is_threshold_lower, float(config.rollout_is_threshold)
    if config.rollout_is_mode == "truncate":
        return on | {f"{_TIS}_type": "tis", f"{_TIS}_ratio": high, f"{_TIS}_ratio_min": low}
    return on | {f"{_TIS}_type": "icepop", f"{_TIS}_ratio": high, f"{_TIS}_ratio_min": low or 0.0}
