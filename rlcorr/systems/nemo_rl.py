"""NeMo RL's loss_fn as ours and back, and its dump.

Source: v0.7.0, commit 7ea279ab, nemo_rl/algorithms/loss/loss_functions.py:111-165, 292-325, 566-690, and
nemo_rl/algorithms/grpo.py, seq_logprob_error_threshold. The fields and their defaults are the same at commit 006907a9,
after v0.7.0. Of 0.8.0 only the documentation was read: it lists the same classes of losses, but no fields.

The nightly documentation (November 2026) has loss_fn.score_centering, which the one of 0.8.0 lacks. The loss_fn of
commit 006907a9 accepts unknown keys, so a version without score centering would ignore this key silently.

train_data_step{N}.jsonl has arrays over prompt and response, and two masks.
"""

import math
from collections.abc import Mapping
from typing import Any

from rlcorr.config import CorrectionConfig, LossConfig
from rlcorr.errors import UsageError
from rlcorr.losses.score_centering import check_centering
from rlcorr.rules import RejectionRule
from rlcorr.systems.mapping.dumps import Dump
from rlcorr.systems.mapping.keys import (
    choice,
    known_keys,
    names_of_other_versions,
    number,
    optional,
    options,
    refuse_ignored,
    switch,
    version_of,
)
from rlcorr.systems.mapping.refusals import (
    bounds,
    is_unbounded,
    no_rule,
    ratio_rule,
    refuse_centering,
    require_plain,
)
from rlcorr.systems.mapping.serialize import as_yaml, commented

DUMP = Dump(
    columns=frozenset({"generation_logprobs", "prev_logprobs"}),
    renamed={"content": "responses"},  # the text of prompt and response
    mask_over_dummy="token_loss_mask",
    row_mask="sample_loss_mask",
)

VERSIONS = ("0.8.0", "nightly")
_TIS = "truncated_importance_sampling"
FIELDS: dict[str, Any] = {
    "use_importance_sampling_correction": False,
    f"{_TIS}_type": None,
    f"{_TIS}_ratio": None,
    f"{_TIS}_ratio_min": None,
    "sequence_level_importance_ratios": False,
}
"""Fields of `loss_fn`, with NeMo RL's defaults. 0.7.0 has the same."""
CENTERING = "score_centering"
_NAMES = {"0.8.0": tuple(FIELDS), "nightly": (*FIELDS, CENTERING)}
NEEDS = "score_centering needs SingleController, NeMo Gym, vLLM, and token capture with a positive top-k"
RATIOS = (f"{_TIS}_ratio", f"{_TIS}_ratio_min")
ERROR = "seq_logprob_error_threshold"


def from_nemo_rl(source: Mapping[str, Any], *, version: str = "0.8.0") -> CorrectionConfig:
    """Return the configuration of NeMo RL's `loss_fn` and of seq_logprob_error_threshold, which is under `grpo`.

    `source` is a mapping {"loss_fn": …, "grpo": …}, or only the keys of `loss_fn`. tis clamps r, icepop sets r to 0
    outside the bounds, seq-mask-tis rejects by the geometric mean and keeps the raw r. Without a type, r stays raw.

    Raises `UsageError` for unknown keys, types and versions, for what NeMo RL refuses, for GSPO's sequence ratios, for
    score_centering: true, which is a part of our LossConfig, and for a ratio without a type: NeMo RL ignores it, while
    an earlier version (pull request 1348) clamped at it.
    """
    names = _NAMES[version_of("NeMo RL", version, VERSIONS)]
    source = options("NeMo RL's configuration", source, retired=names_of_other_versions("NeMo RL", version, _NAMES))
    if isinstance(source, Mapping) and source and not source.keys() & {"loss_fn", "grpo"}:
        source = {"loss_fn": source}
    known_keys("NeMo RL's configuration", source, ("loss_fn", "grpo"))
    known_keys("NeMo RL's grpo", source.get("grpo", {}), (ERROR,))
    known_keys("NeMo RL's loss_fn", source.get("loss_fn", {}), names)
    values = FIELDS | {CENTERING: False} | dict(source.get("loss_fn", {}))
    if switch(CENTERING, values[CENTERING]):
        raise UsageError("score_centering belongs to the loss: leave it out, and set LossConfig(score_centering=True).")
    error = optional(ERROR, source.get("grpo", {}).get(ERROR))
    rules = () if error is None else (RejectionRule.named("seq_mean_mult_error", upper=error),)
    kind = values[f"{_TIS}_type"]
    if switch("sequence_level_importance_ratios", values["sequence_level_importance_ratios"]):
        raise UsageError("sequence_level_importance_ratios is GSPO's ratio, unbounded; nearest: rollout_is='sequence'.")
    if not switch("use_importance_sampling_correction", values["use_importance_sampling_correction"]):
        if kind is not None:
            raise UsageError(f"NeMo RL refuses {_TIS}_type without use_importance_sampling_correction: true.")
        refuse_ignored("NeMo RL", values, FIELDS, RATIOS, "without use_importance_sampling_correction: true")
        return CorrectionConfig(rollout_rs=rules)
    return _weights(kind, values, rules)


def _weights(kind: Any, values: dict[str, Any], rules: tuple[RejectionRule, ...]) -> CorrectionConfig:
    weights: dict[str, Any] = {"rollout_is": "token", "rollout_is_threshold": math.inf}
    if kind is None:
        refuse_ignored("NeMo RL", values, FIELDS, RATIOS, f"without {_TIS}_type (tis clamps at it)")
        return CorrectionConfig(**weights, rollout_rs=rules)
    choice(f"{_TIS}_type", kind, ("tis", "icepop", "seq-mask-tis"))
    upper, lower = number(f"{_TIS}_ratio", values[f"{_TIS}_ratio"]), values[f"{_TIS}_ratio_min"]
    if kind != "tis":
        lower = number(f"{_TIS}_ratio_min", lower)
    lower = optional(f"{_TIS}_ratio_min", lower)
    if kind == "seq-mask-tis":
        return CorrectionConfig(**weights, rollout_rs=(ratio_rule("seq_mean_k1", lower, upper), *rules))
    return CorrectionConfig(
        rollout_is="token",
        rollout_is_threshold=upper,
        rollout_is_threshold_lower=lower or None,
        rollout_is_mode="truncate" if kind == "tis" else "mask",
        rollout_rs=rules,
    )


def to_nemo_rl(config: CorrectionConfig, loss: LossConfig | None = None, *, version: str = "0.8.0") -> dict[str, Any]:
    """Return `loss_fn` and, if needed, `grpo`. From `loss` comes score_centering, in the version nightly.

    Raises `UsageError` for what NeMo RL cannot do.
    """
    centered = loss is not None and loss.score_centering
    if version_of("NeMo RL", version, VERSIONS) != "nightly":
        refuse_centering("NeMo RL", loss, version)
    require_plain(
        "NeMo RL",
        config,
        bypass="force_on_policy_ratio, which leaves the clip out",
        loss="loss_fn.use_cispo and the like",
    )
    rules = {rule.name: rule for rule in config.rollout_rs}
    error, geometric = rules.pop("seq_mean_mult_error", None), rules.pop("seq_mean_k1", None)
    if rules:
        raise no_rule("NeMo RL", next(iter(rules.values())), "seq_mean_k1 with raw weights, or seq_mean_mult_error")
    fields = FIELDS | _loss_fields(config, geometric)
    if centered:
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


def nemo_rl_text(config: CorrectionConfig, loss: LossConfig | None = None, *, version: str = "0.8.0") -> str:
    """Return YAML. Raises `UsageError` as `to_nemo_rl` does."""
    fields = to_nemo_rl(config, loss, version=version)
    notes = [NEEDS] if fields["loss_fn"].get(CENTERING) else []
    return commented(as_yaml("", fields), [f"NeMo RL {version}", *notes])
