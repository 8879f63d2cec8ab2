"""Weights, kept tokens and metrics of a case: verl's against ours."""

import math
from dataclasses import replace

import cases
import faults
import torch
from cases import CLAMP, EPSILON, STEPS, Case
from counting import Tally
from faults import MENDED, Outcome
from torch import Tensor

from rlcorr.correction import correct
from rlcorr.measuring.measure import measure
from rlcorr.measuring.metric_definitions import PREFIX
from rlcorr.measuring.metrics import metrics
from rlcorr.rules import RejectionRule
from rlcorr.types import TokenBatch


def compare_correction(case: Case, tally: Tally) -> None:
    config = case.config
    batch = TokenBatch(case.mask, rollout_log_probs=case.rollout, old_log_probs=case.old)  # NaN and −inf too
    result = correct(batch, config)
    names = faults.affected(case)
    if "no token" in names:
        tally.fault("no token", faults.run_verl(case) == "ValueError")
        tally.check("weights", case, not result.weights.any(), "a batch without tokens has a weight")
        tally.check("kept tokens", case, not result.keep_mask.any(), "a batch without tokens keeps one")
        return
    right_case = faults.mended(case)
    right = faults.run_verl(right_case)
    rule_doubt, weight_doubt = cases.rules_near(case)[case.mask], cases.weights_near(case)[case.mask]
    if isinstance(right, str):
        if right == "ZeroDivisionError" and weight_doubt.any():
            tally.left_out["weights"] += 1
        else:
            tally.check("weights", case, False, f"verl raised {right}")
        return
    kept = right.kept & kept_by_summed_k1(case)[case.mask]
    for name in sorted(names & MENDED):
        tally.fault(name, faults.shows(name, case, replace(right, kept=kept)))
    tally.check("weights", case, not result.weights[~case.mask].any(), "a weight on padding")
    tally.check("kept tokens", case, not (result.keep_mask & ~case.mask).any(), "padding is kept")
    same = (result.keep_mask[case.mask] == kept) | rule_doubt
    tally.check("kept tokens", case, bool(same.all()), f"{int((~same).sum())} of {same.numel()} tokens")
    tally.left_out["kept tokens"] += bool(rule_doubt.any())
    if "k1 bounds inverted" in names:
        as_written = faults.read_as_written(config)
        tally.fault("k1 bounds inverted", not correct(batch, as_written).keep_mask.equal(result.keep_mask))
    factor = compare_weights(case, result.weights[case.mask], right, kept, weight_doubt, rule_doubt, tally)
    if not case.d.isfinite().all():
        tally.left_out["metrics"] += 1
        return
    report = metrics(measure(batch, result, config))
    wanted = right.metrics | combined_rule_metrics(case, kept)
    wanted.pop(f"{PREFIX}rollout_is_batch_norm_factor", None)
    if factor is not None:
        wanted[f"{PREFIX}rollout_is_batch_norm_factor"] = factor
    compare_metrics(
        case, report, wanted, bool(rule_doubt.any()) or cases.row_means_near(case), bool(weight_doubt.any()), tally
    )


def compare_weights(
    case: Case, got: Tensor, right: Outcome, kept: Tensor, weight_doubt: Tensor, rule_doubt: Tensor, tally: Tally
) -> float | None:
    """Compare weights; the factor of batch normalisation that is right, if there is one and it can be called."""
    config = case.config
    masks = config.rollout_is_mode == "mask"
    if right.weights is None:  # none are asked for, or every one is 0
        if masks and weight_doubt.any():
            tally.left_out["weights"] += 1
        else:
            tally.close("weights", case, got, torch.full_like(got, float(config.rollout_is is None)), 0.0)
        return None
    want, factor = right.weights.double(), None
    if config.rollout_is_batch_normalize:
        factor = right.metrics[f"{PREFIX}rollout_is_batch_norm_factor"]
        if rule_doubt.any() or (masks and weight_doubt.any()):
            tally.left_out["weights"] += 1
            return None
        if not kept.all():
            want, factor = normalised(case, kept)
            tally.fault("normalised before rejection", not torch.allclose(want, right.weights.double(), rtol=1e-3))
    doubt = weight_doubt & masks
    # Products of exponentials: one rounding each, and for sequences Σ|d| roundings in the exponent.
    noise = cases.log_weights(case)[1].expand_as(case.d)[case.mask]
    noise = torch.full_like(noise, 2.0) if config.rollout_is == "token" else noise
    noise, unit = noise.nan_to_num(posinf=0), case.rounding
    if config.rollout_is_batch_normalize:  # the mean brings the noise of the others, and verl's 1e-8
        noise, unit = noise + noise.max(), max(unit, EPSILON)
    allowed = torch.where(doubt, math.inf, want.abs() * STEPS * unit * noise)
    tally.close("weights", case, got, want, allowed)
    tally.left_out["weights"] += bool(doubt.any())
    return factor


def normalised(case: Case, kept: Tensor) -> tuple[Tensor, float]:
    """verl's weights before normalisation, divided by their mean over kept tokens, or one vote per kept sequence."""
    options = case.options | {"rollout_is_batch_normalize": False, "rollout_rs": None, "rollout_rs_threshold": None}
    plain = faults.run_verl(faults.mended(replace(case, options=options)))
    assert isinstance(plain, Outcome)
    assert plain.weights is not None
    w = plain.weights.double()
    if case.config.rollout_is == "token":
        votes = w[kept].tolist()
    else:
        rows = torch.arange(len(case.mask))[:, None].expand_as(case.mask)[case.mask]
        votes = [w[kept & (rows == b)].mean().item() for b in rows[kept].unique().tolist()]
    mean = sum(votes) / len(votes) if votes else 0.0
    factor = mean if mean > EPSILON else 1.0
    return w / factor, factor


def combined_rule_metrics(case: Case, kept: Tensor) -> dict[str, float]:
    """Shares of rejected tokens and of sequences that lost one, counted from the tokens that are rightly kept."""
    rejected = torch.zeros_like(case.mask)
    rejected[case.mask] = ~kept
    return {
        f"{PREFIX}rollout_rs_masked_fraction": rejected.sum().item() / case.mask.sum().item(),
        f"{PREFIX}rollout_rs_seq_masked_fraction": rejected.any(-1).sum().item() / case.mask.any(-1).sum().item(),
    }


def kept_by_summed_k1(case: Case) -> Tensor:
    """(B, T) tokens that the summed k1 rules keep, where verl's clamp changes them; elsewhere everything."""
    keep = torch.ones_like(case.mask)
    for rule in faults.summed_k1(case) if faults.beyond_clamp(case) else []:
        low, high = cases.bounds_of(rule)
        value, _ = cases.statistic(rule.name, case.d, case.mask)
        keep = keep & (value >= low) & (value <= high)
    return keep


# --- metrics ---

MIRROR = {"max": "min", "min": "max", "seq_max": "seq_min", "seq_min": "seq_max"} | {
    f"{seq}fraction_{a}": f"{seq}fraction_{b}" for seq in ("", "seq_") for a, b in (("high", "low"), ("low", "high"))
}
"""verl's k1 statistic is −log r, ours log r: extremes and sides change places."""
DECISIONS = ("fraction_high", "fraction_low", "masked_fraction", "seq_masked_fraction")
SIGNED = ("mean", "max", "min", "seq_mean", "seq_max", "seq_min")


def ours_for(name: str, case: Case) -> tuple[str, int]:
    """Our name for verl's metric, and the sign between the two."""
    rule, suffix = rule_of(name, case)
    if rule is not None and rule.divergence == "k1":
        turned = "log_ratio_" if suffix in (*SIGNED, *MIRROR) else ""
        return f"rollout_rs_{rule.name}_{turned}{MIRROR.get(suffix, suffix)}", -1 if suffix in SIGNED else 1
    return name, 1


def rule_of(name: str, case: Case) -> tuple[RejectionRule | None, str]:
    for rule in case.config.rollout_rs:
        if name.startswith(f"rollout_rs_{rule.name}_"):
            return rule, name.removeprefix(f"rollout_rs_{rule.name}_")
    return None, name


def compare_metrics(
    case: Case, report: dict[str, float], wanted: dict[str, float], rule_doubt: bool, weight_doubt: bool, tally: Tally
) -> None:
    """Every metric of verl's; a sign, a name or a clamp apart."""
    case = faults.without_empty_rows(case)
    wanted = dict(wanted)
    names = faults.affected(case)
    if "unclamped exponentials" in names:
        tally.fault("unclamped exponentials", replaced(wanted, reclamped(case, wanted)))
    if "epsilon in sample size" in names:
        tally.fault("epsilon in sample size", replaced(wanted, without_epsilon(wanted)))
    for key, want in wanted.items():
        name = key.removeprefix(PREFIX)
        rule, suffix = rule_of(name, case)
        counted = "fraction" in name or "oob" in name or (case.config.rollout_is_mode == "mask" and "_is_" in name)
        if counted and (rule_doubt if "_rs_" in name else weight_doubt):
            tally.left_out["metrics"] += 1
            continue
        if rule is not None and rule.divergence == "k1" and faults.beyond_clamp(case) and suffix not in DECISIONS:
            tally.left_out["metrics"] += 1  # verl measures the clamped log-ratio
            continue
        ours, sign = ours_for(name, case)
        if PREFIX + ours not in report:
            tally.check("metrics", case, False, f"{name} is not reported")
            continue
        got, allowed = sign * report[PREFIX + ours], allowed_error(name, want, case)
        if name.endswith("_std"):  # a variance is a difference of sums: its error does not shrink with it
            got, want = got * got, want * want
        same = math.isfinite(got) and abs(got - want) <= allowed
        tally.check("metrics", case, same, f"{name} got {got:.9g}, verl {want:.9g}, allowed {allowed:.3g}")


def replaced(wanted: dict[str, float], right: dict[str, float]) -> bool:
    """Put the right numbers in place; whether any changed by more than rounding."""
    changed = any(not math.isclose(right[key], wanted[key], rel_tol=1e-4) for key in right)
    wanted |= right
    return changed


def reclamped(case: Case, wanted: dict[str, float]) -> dict[str, float]:
    """k3_kl and the extremes of sequence weights with the clamp that verl has everywhere else."""
    c = case.d[case.mask].clamp(-CLAMP, CLAMP)
    right = {f"{PREFIX}k3_kl": (torch.expm1(c) - c).mean().item()}
    for key in (f"{PREFIX}rollout_is_min", f"{PREFIX}rollout_is_max"):
        if case.config.rollout_is == "sequence" and key in wanted:
            right[key] = min(max(wanted[key], math.exp(-CLAMP)), math.exp(CLAMP))
    return right


def without_epsilon(wanted: dict[str, float]) -> dict[str, float]:
    """verl gives (m + 1e-8)²/mean(w²), m the mean weight; m²/mean(w²) is meant."""
    key, m = f"{PREFIX}rollout_is_eff_sample_size", wanted.get(f"{PREFIX}rollout_is_mean")
    return {} if m is None else {key: wanted[key] * (m / (m + EPSILON)) ** 2}


def allowed_error(name: str, want: float, case: Case) -> float:
    """What rounding allows. u is one rounding (verl's 1e-8 in float64), STEPS of them are a sum.

    A mean of positive numbers has a relative error of STEPS u. What is a difference of sums has one relative to the
    sums; what is exponentiated turns an absolute error into a relative one.
    """
    rule, suffix = rule_of(name, case)
    u = STEPS * max(case.rounding, EPSILON)
    if "fraction" in name or "oob" in name:
        return u
    if rule is not None:
        return u * rule_noise(rule, suffix, case)
    if "_is_" in name:
        return u * weight_noise(name, want, case)
    d, c = case.d, case.d.clamp(-CLAMP, CLAMP)
    sizes = cases.over(torch.where(case.mask, case.old.abs() + case.rollout.abs(), 0).double(), case.mask, "mean")
    largest = sizes.max().item()
    if name == "k3_kl":
        return u * ((1 + c.exp()) * (1 + c.abs()))[case.mask].mean().item()
    if name == "chi2_token":
        return 2 * u * (1 + (2 * c).exp()[case.mask].mean().item())
    if name == "chi2_seq":
        squares = (2 * d.sum(-1).clamp(-CLAMP, CLAMP)).exp()
        return 2 * u * (1 + (squares * (1 + d.abs().sum(-1))).mean().item())
    return u * largest * (abs(want) if name in ("training_ppl", "rollout_ppl", "ppl_ratio") else 1) + u * abs(want)


def rule_noise(rule: RejectionRule, suffix: str, case: Case) -> float:
    """Error of a rule's metric, in STEPS u."""
    value, noise = cases.statistic(rule.name, case.d, case.mask)
    if rule.reduce is None and suffix.startswith("seq_"):
        value, noise = cases.over(value, case.mask, "mean"), cases.over(noise, case.mask, "mean")
    value, noise = (x.expand_as(case.d)[case.mask] for x in (value, noise))
    if suffix == "std":
        low, high = cases.bounds_of(rule)
        inside = value.clamp(max(low, -1e300), min(high, 1e300))
        return 2 * (inside.abs().max() * (inside.abs() + noise * (value == inside)).max()).item()
    if suffix == "seq_std":
        return 2 * (value.abs().max() * (value.abs() + noise).max()).item()
    if suffix in ("max", "min", "seq_max", "seq_min"):
        upwards = suffix.endswith("max") == (rule.divergence != "k1")
        return noise[value.argmax() if upwards else value.argmin()].item()
    return noise.max().item()


def weight_noise(name: str, want: float, case: Case) -> float:
    """Error of a metric of the weights, in STEPS u: relative, and Σ|d| more for sequence weights."""
    relative = 2.0 + (case.d.abs().sum(-1).max().item() if case.config.rollout_is == "sequence" else 0.0)
    log_w, _ = cases.log_weights(case)
    raw = log_w.clamp(-CLAMP, CLAMP).exp().expand_as(case.d)[case.mask]
    low, high = (math.exp(bound) for bound in cases.weight_bounds(case.config))
    w = raw.clamp(max=high) if case.config.rollout_is_mode == "truncate" else raw.where((raw >= low) & (raw <= high), 0)
    if name.endswith("_std"):  # ours squares w − 1
        return 4 * relative * (w.square() + (w - 1).square()).max().item()
    if name.endswith("deviation"):
        return relative * (1 + w.max().item())
    if name.endswith("sample_size"):
        return 2 * relative * want
    return relative * want
