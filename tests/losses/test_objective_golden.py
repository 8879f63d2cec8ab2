"""Whole policy losses, values and gradients, against what verl and SkyRL themselves computed."""

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from reference import GOLDEN, VERL, batch, config, tensor
from torch import Tensor

from rlcorr import CorrectionConfig, TokenBatch, correct
from rlcorr.config import Aggregation, LossConfig, LossType
from rlcorr.errors import UsageError
from rlcorr.losses.objective import aggregate, policy_loss
from rlcorr.systems.skyrl import from_skyrl
from rlcorr.types import CorrectionResult

SKYRL = GOLDEN["skyrl-main"]
# verl's trainer runs dppo with 3.0, the default of another loss's clip_ratio_c; sapo, gspo and geo_mean always average
# over sequences.
VERL_LOSS = LossConfig(numbers={"dppo_ratio_cap": 3.0})
OVER_SEQUENCES = ("gspo", "sapo", "geo_mean")


def assert_close(got: Tensor, want: Tensor, name: str, atol: float = 1e-6) -> None:
    torch.testing.assert_close(got, want, rtol=2e-5, atol=atol, msg=lambda text: f"{name}: {text}")


def assert_like(loss: Tensor, log_probs: Tensor, value: Any, gradient: Any, name: str) -> None:
    loss.backward()
    assert log_probs.grad is not None
    assert_close(log_probs.grad, tensor(gradient), name)
    if value == "nan":  # everything rejected: verl divides 0 by 0
        assert loss.item() == 0, name
    else:
        assert loss.item() == pytest.approx(value, rel=2e-5, abs=1e-6), name


def verl_inputs(case: str) -> tuple[Tensor, TokenBatch, Tensor]:
    """log π_θ, the batch, the weights. In verl's record π_θ are the case's old log-probs, π_old its rollout ones."""
    given, extra = batch(case), VERL["policy_loss"]["inputs"][case]
    assert given.old_log_probs is not None
    theta = given.old_log_probs.clone().requires_grad_()
    given = given.replace(old_log_probs=given.rollout_log_probs, advantages=tensor(extra["advantages"]))
    return theta, given, tensor(extra["rollout_is_weights"])


def decided(given: TokenBatch, weights: Tensor) -> CorrectionResult:
    """A correction that was made elsewhere: these weights, nothing rejected."""
    return replace(correct(given, CorrectionConfig()), weights=weights)


# --- verl ---

PLAIN = [r for r in VERL["policy_loss"]["results"] if r["loss"] not in ("bypass_mode", "dro")]


@pytest.mark.parametrize("result", PLAIN, ids=range(len(PLAIN)))
def test_verl_policy_loss(result: Any) -> None:
    name = f"{result['loss']}-{result['case']}-{result['weighted']}"
    theta, given, weights = verl_inputs(result["case"])
    mode: Aggregation = "seq-mean-token-mean" if result["loss"] in OVER_SEQUENCES else "token-mean"
    loss_type: LossType = "dual_clip" if result["loss"] == "vanilla" else result["loss"]
    correction = CorrectionConfig(loss_type=loss_type)
    weights = weights if result["weighted"] else torch.ones_like(weights)
    value, measured = policy_loss(
        theta, given, decided(given, weights), correction, replace(VERL_LOSS, loss_agg_mode=mode)
    )
    assert_like(value, theta, result["value"], result["grad_log_prob"], name)
    # sapo and gpg have no clip: verl reports 0, ours nothing.
    for key in set(result["metrics"]) & set(measured.names):
        row = measured.table[measured.names.index(key)]
        assert float(row[1] / row[0]) == pytest.approx(result["metrics"][key], rel=1e-4, abs=1e-6), (name, key)
    assert {"actor/ppo_kl"} <= set(measured.names), name


BYPASS = [r for r in VERL["policy_loss"]["results"] if r["loss"] == "bypass_mode"]


@pytest.mark.parametrize("result", BYPASS, ids=range(len(BYPASS)))
def test_verl_bypass(result: Any) -> None:
    """Correction and loss together: weights and rejection follow π_θ/π_rollout.

    verl's denominator is what the trainer passes: every token before rejection, or else those that are kept. Its
    ppo_clip computes weights for the metrics and does not apply them; ours refuses to be asked for both.
    """
    theta, given, _ = verl_inputs(result["case"])
    asked = dict(result["rollout_correction"])
    if asked.get("loss_type", "ppo_clip") == "ppo_clip" and asked["rollout_is"] is not None:
        with pytest.raises(UsageError, match="double correction"):
            config(asked)
        asked |= {"rollout_is": None, "rollout_is_batch_normalize": False}
    correction = replace(config(asked), denominator="fixed" if result["global_batch_info"] else "kept")
    value, _ = policy_loss(theta, given, correct(given, CorrectionConfig()), correction, LossConfig())
    assert_like(value, theta, result["value"], result["grad_log_prob"], f"{result['preset']}-{result['case']}")


@pytest.mark.parametrize("run", GOLDEN["verl-tis2953"]["runs"], ids=lambda r: str(r["tis_imp_ratio_cap"]))
def test_the_first_tis(run: Any) -> None:
    """verl's PR 2953: the weight min(π_old/π_rollout, cap) times the clipped loss; a cap of −1 is off."""
    theta = tensor(run["log_prob"]).requires_grad_()
    given = batch(run["case"]).replace(advantages=tensor(run["advantages"]))
    cap = run["tis_imp_ratio_cap"]
    asked = {"rollout_is": "token", "rollout_is_threshold": cap} if cap > 0 else {}
    correction = CorrectionConfig(loss_type="dual_clip", **asked)
    value, _ = policy_loss(theta, given, correct(given, correction), correction, LossConfig())
    assert_like(value, theta, run["loss"], run["grad_log_prob"], f"cap {cap}")


AGG = [case for case in VERL["agg_loss"] if case["mode"] != "bad" and "error" not in case]


@pytest.mark.parametrize("case", AGG, ids=range(len(AGG)))
def test_verl_agg_loss(case: Any) -> None:
    name = f"{case['mode']}-{case['mask']}-{sorted(case['kwargs'].items())}"
    loss = tensor(VERL["agg_loss_input"]["loss_mat"])
    if "nan_at_masked" in case:
        loss[tuple(case["nan_at_masked"])] = math.nan
    loss.requires_grad_()
    mask = tensor(VERL["agg_loss_input"]["masks"][case["mask"]]).bool()
    told = case["kwargs"]
    counts = {"tokens": told.get("batch_num_tokens"), "sequences": told.get("global_batch_size")}
    value = aggregate(loss, mask, mask, case["mode"], **counts, scale=told.get("loss_scale_factor"))
    value = value * told.get("dp_size", 1)
    value.backward()
    assert loss.grad is not None
    wrong = case["value"] in ("nan", "inf")  # verl: 0/0 for an empty mask, x/0 for a count of 0, NaN from padding
    assert value.isfinite(), name
    assert loss.grad.isfinite().all(), name
    if not wrong:
        assert value.item() == pytest.approx(case["value"], rel=2e-5, abs=1e-6), name
    if not wrong and "grad" in case:
        assert_close(loss.grad, tensor(case["grad"]), name, atol=1e-7)


# --- SkyRL ---

CLIP: dict[str, Any] = {"clip_ratio_low": 0.2, "clip_ratio_high": 0.2}
ALL_RATIOS: dict[str, Any] = {"clip_ratio_low": 1.0, "clip_ratio_high": 1e9}  # no clip: −A ρ
WIDE: dict[str, Any] = {"clip_ratio_low": 1.0, "clip_ratio_high": 4.0}
SKYRL_LOSSES: dict[str, tuple[LossType, dict[str, Any]]] = {
    "regular": ("ppo_clip", CLIP),
    "dual_clip": ("dual_clip", CLIP),
    "gspo": ("gspo", CLIP),
    "sapo": ("sapo", {}),
    "cispo": ("cispo", WIDE),
    "importance_sampling": ("ppo_clip", ALL_RATIOS),
    "rollout_is": ("reinforce", {}),
    "dppo": ("dppo_tv", {"numbers": {"dppo_ratio_cap": 1e9}}),
    "kl_cov": ("kl_cov", {"numbers": {"kl_cov_ratio": 0.2, "ppo_kl_coef": 1.0}}),
}
# cross_entropy is no policy gradient. dppo and rollout_is with importance weights on top correct twice: refused below.
TWICE = ("dppo", "rollout_is")
# SkyRL drops the correction in silence where it was asked for with one of these.
WITHOUT_CORRECTION = ("importance_sampling", "kl_cov")
COMPARED = [
    r for r in SKYRL["policy_loss"]["results"]
    if r["loss"] != "cross_entropy" and "error" not in r and not (r["loss"] in TWICE and r["opc"] == "tis_token")
]  # fmt: skip


def skyrl_correction(result: Any) -> tuple[CorrectionConfig, LossConfig]:
    loss_type, numbers = SKYRL_LOSSES[result["loss"]]
    configs = {"none": {}, "tis_token": SKYRL["configs"]["tis_token_2"]}
    name = "none" if result["loss"] in WITHOUT_CORRECTION else result["opc"]
    correction = from_skyrl(configs.get(name) or SKYRL["configs"].get(name, {}))
    options = result["extra"].get("dppo", {})
    if options:
        loss_type = "dppo_tv" if options["dppo_type"] == "binary_tv" else "dppo_kl"
        numbers = numbers | {"clip_ratio_low": options["delta_low"], "clip_ratio_high": options["delta_high"]}
    correction = replace(correction, loss_type=loss_type if loss_type != "reinforce" else "gpg")
    return correction, LossConfig(loss_agg_mode="token-sum", **numbers)


@pytest.mark.parametrize("result", COMPARED, ids=range(len(COMPARED)))
def test_skyrl_policy_loss(result: Any) -> None:
    name = f"{result['loss']}-{result['opc']}-{result['case']}-{result['extra']}"
    extra = SKYRL["policy_loss"]["inputs"][result["case"]]
    theta = tensor(extra["log_probs"]).requires_grad_()
    given = batch(result["case"]).replace(advantages=tensor(extra["advantages"]))
    correction, numbers = skyrl_correction(result)
    decision = correct(given, correction)
    to_rollout = result["loss"] in TWICE or result["extra"].get("cispo", {}).get("cispo_anchor") == "rollout"
    if result["loss"] == "rollout_is":
        # −sg(r [0.8 < r < 1.2]) A log π_θ with r = π_θ/π_rollout: IcePop weights of the bypassed policy gradient.
        icepop = {"rollout_is_mode": "mask", "rollout_is_threshold_lower": 0.8, "rollout_is_threshold": 1.2}
        correction = CorrectionConfig(rollout_is="token", bypass_mode=True, loss_type="reinforce", **icepop)
    elif to_rollout:  # SkyRL compares π_θ with π_rollout, whatever it rejects by π_old/π_rollout
        given = given.replace(old_log_probs=given.rollout_log_probs)
    value, _ = policy_loss(theta, given, decision, correction, numbers)
    if result["loss"] == "dppo":  # SkyRL differentiates −ρ A, verl and we −sg(ρ) A log π_θ: the gradient is the same
        value.backward()
        assert theta.grad is not None
        assert_close(theta.grad, tensor(result["grad"]), name)
    else:
        assert_like(value, theta, result["value"], result["grad"], name)


REDUCTIONS: dict[str, Aggregation] = {
    "token_mean": "token-mean",
    "sequence_mean": "seq-mean-token-mean",
    "seq_mean_token_sum_norm": "seq-mean-token-sum-norm",
}


@pytest.mark.parametrize("mode", REDUCTIONS)
def test_skyrl_loss_reduction(mode: str) -> None:
    """SkyRL scales the advantages and sums; the scale is our gradient. Its sequence modes count rows without tokens.

    token_mean_legacy depends on the micro-batches and prompt_mean on the prompts: neither is one of the five modes.
    """
    golden = SKYRL["loss_reduction"]
    scaled = tensor(next(r for r in golden["runs"] if r["mode"] == mode)["advantages"])
    mask, advantages = tensor(golden["loss_mask"]).bool(), tensor(golden["advantages"])
    loss = torch.zeros_like(advantages, requires_grad=True)
    sequences = None if mode == "token_mean" else float(len(mask))
    aggregate(loss, mask, mask, REDUCTIONS[mode], sequences=sequences, scale=float(golden["max_seq_len"])).backward()
    assert loss.grad is not None
    torch.testing.assert_close((loss.grad * advantages)[mask], scaled[mask])


@pytest.mark.parametrize("run", GOLDEN["skyrl-pr1811"]["runs"], ids=lambda r: f"{r['case']}-{r['estimator']}")
def test_rollout_kl(run: Any) -> None:
    given = batch(run["case"])
    assert given.old_log_probs is not None
    theta = given.old_log_probs.clone().requires_grad_()
    given = given.replace(advantages=torch.zeros_like(theta))
    term = {"use_rollout_kl_loss": True, "rollout_kl_loss_coef": 1.0, "rollout_kl_estimator_type": run["estimator"]}
    value, measured = policy_loss(
        theta, given, correct(given, CorrectionConfig()), CorrectionConfig(), LossConfig(**term)
    )
    assert_like(value, theta, run["rollout_kl"], run["grad"], f"{run['case']}-{run['estimator']}")
    row = measured.table[measured.names.index("rollout_kl")]
    assert float(row[1] / row[0]) == pytest.approx(run["rollout_kl"], rel=2e-5, abs=1e-6)
