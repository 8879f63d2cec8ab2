"""`make bench ARGS=lab_studies`: what the Lab predicts of the recorded studies, and what they say."""

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, replace
from functools import cache
from itertools import combinations
from statistics import fmean, median
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rlcorr.gradients.bootstrap import Interval
from rlcorr.lab import Experiment, outcome, run
from rlcorr.lab.outcome import ending
from rlcorr.records import study as studies
from rlcorr.records.study_comparisons import RESAMPLES, rank_correlation

FILE = studies.FOLDER / "lab.json"
BASE = Experiment(seed=1000, seeds=16)
FEW = 4
"""Seeds that choose a setting."""
RATES = [0.001 * 500 ** (k / 23) for k in range(24)]
NOISES = [0.01 * 400 ** (k / 23) for k in range(24)]
THRESHOLDS = [1 + 0.001 * 63_000 ** (k / 23) for k in range(24)]
TINY, LONG, SMOL = 4, 2, 1  # updates per step
# Study → (staleness, updates per step, length), or None for noise, or the settings themselves.
STALE = {
    "stale_8": (8, TINY, 4), "decide_stale": (8, TINY, 4), "decide_long_stale": (8, LONG, 8),
    "smol_stale_6": (6, SMOL, 8), "smol_stale_6_third": (6, SMOL, 8), "smol_centering_stale": (6, SMOL, 8),
    "smol_last_weights": (6, SMOL, 8),
}  # fmt: skip
NOISY = {
    "kv_fp8_e5m2": (TINY, 8), "decide_cache": (TINY, 4), "decide_long_cache": (LONG, 8), "smol_e5m2": (SMOL, 8),
    "smol_centering_fp8": (SMOL, 8), "smol_precision": (SMOL, 8),
}  # fmt: skip
CONTROLS = {"stale_8": "stale_0", "kv_fp8_e5m2": "kv_bf16"}
NOTHING = ("none", "disabled")
CLEAN = ("fresh", "fresh_cache", "float32", "control")
CAPS = {
    "token_cap": "token", "decoupled_token_is": "token",
    "product_cap": "sequence", "decoupled_seq_is": "sequence", "product_cap_normalized": "sequence",
}  # fmt: skip
RULES = {"token_band": "token", "geometric": "geometric", "product_band": "sequence"}
PILOT = {"rate_1e-5": 0.0125, "rate_2e-5": 0.025, "rate_4e-5": 0.05}


def rows_of(name: str) -> list[dict[str, Any]]:
    """The rows of a study, and those of its control as one more arm."""
    rows = studies.read_study(name)[0]
    if name in CONTROLS:
        rows = rows + [{**row, "preset": "control"} for row in studies.read_study(CONTROLS[name])[0]]
    return rows


def k3_of(rows: list[dict[str, Any]], first: int, last: int) -> float:
    values = [row["k3"] for row in rows if row["preset"] in NOTHING and first < row["step"] <= last]
    return median(value for value in values if value is not None)


def nearest(tried: dict[float, float], target: float) -> float:
    return min(tried, key=lambda value: abs(math.log(max(tried[value], 1e-12)) - math.log(target)))


def setting(name: str) -> Experiment:
    """The setting of the Lab, which depends on the options of a study and the gap of its arm without a correction."""
    rows = rows_of(name)
    steps = max(row["step"] for row in rows)
    if name in STALE:
        staleness, updates, length = STALE[name]
        e = replace(BASE, ratio="none", lag=staleness * updates, length=length, steps=min(400, steps * updates))
        few = replace(e, seeds=FEW)
        tried = {
            rate: run(replace(few, learning_rate=rate), (None,)).k3[..., e.lag :].median().item() for rate in RATES
        }
        return replace(e, learning_rate=nearest(tried, k3_of(rows, staleness, steps)))
    if name == "smol_support":
        return replace(BASE, ratio="none", lag=0, top_p=0.9, length=8, steps=steps)
    updates, length = NOISY[name]
    e = replace(BASE, ratio="none", lag=0, length=length, steps=min(400, steps * updates))
    tried = {noise: run(replace(e, noise=noise, steps=1), (None,)).k3.mean().item() for noise in NOISES}
    return replace(e, noise=nearest(tried, k3_of(rows, 0, 1)))


def ends_of(e: Experiment, arm: str) -> Tensor | None:
    """The endings of an arm, (seeds,); None if the Lab has no counterpart."""
    if arm in NOTHING:
        return ending(run(e, (None,)).reward)[0]
    if arm in CLEAN:
        return ending(run(replace(e, lag=0, noise=0.0), (None,)).reward)[0]
    if arm in CAPS:
        return ending(run(replace(e, ratio=CAPS[arm], bound="cap"), (2.0,)).reward)[0]
    if arm == "decoupled_token_icepop":
        return ending(run(replace(e, ratio="token", bound="band"), (3.0,)).reward)[0]
    if arm == "skyrl_geo_mask":
        return ending(run(replace(e, ratio="geometric", bound="reject"), (1.01,)).reward)[0]
    kind, _, share = arm.rpartition("_")
    if kind not in RULES:
        return None
    rule = replace(e, ratio=RULES[kind], bound="reject")
    threshold = THRESHOLDS[int((kept_at_thresholds(rule) - int(share) / 100).abs().argmin())]
    return ending(run(rule, (threshold,)).reward)[0]


@cache
def kept_at_thresholds(rule: Experiment) -> Tensor:
    """The share of the tokens that each threshold keeps over the whole training run."""
    return 1 - run(replace(rule, seeds=FEW), THRESHOLDS).clipped.mean((-1, -2))


def predict() -> dict[str, Any]:
    predicted: dict[str, Any] = {}
    for name in [*STALE, *NOISY, "smol_support"]:
        e = setting(name)
        arms = dict.fromkeys(row["preset"] for row in rows_of(name))
        ends = {arm: values for arm in arms if (values := ends_of(e, arm)) is not None}
        predicted[name] = entry(asdict(e), ends)
        print(name, e.lag, f"{e.learning_rate:.3g}", f"{e.noise:.3g}", predicted[name]["order"], flush=True)
    e = replace(BASE, ratio="none", lag=0, length=8, steps=16)
    ends = {arm: ending(run(replace(e, learning_rate=rate), (None,)).reward)[0] for arm, rate in PILOT.items()}
    predicted["smol_pilot"] = entry(asdict(e), ends)
    return predicted


def entry(settings: dict[str, Any], ends: Mapping[str, Tensor]) -> dict[str, Any]:
    order = sorted(ends, key=lambda arm: -ends[arm].mean())
    pairs = [(a, b) for a, b in combinations(order, 2) if outcome(ends[a] - ends[b]).low > 0]
    values = {arm: [round(value, 4) for value in ends[arm].tolist()] for arm in order}
    return {"settings": settings, "order": order, "pairs": pairs, "ends": values}


@cache
def seen(name: str) -> dict[str, dict[int, float]]:
    """Arm → seed → the study's own number."""
    planned = studies.find_study(name).endpoint
    rows = rows_of(name)
    return studies.endpoints(rows, planned) if planned else studies.end_rewards(rows)


def score(name: str, lab: dict[str, Any]) -> dict[str, Any]:
    ends, counts = seen(name), {"hits": 0, "misses": 0, "not known": 0}
    for better, worse in lab["pairs"]:
        seeds = ends[better].keys() & ends[worse].keys()
        gain = outcome(torch.tensor([ends[better][seed] - ends[worse][seed] for seed in seeds]))
        counts["hits" if gain.low > 0 else "misses" if gain.high < 0 else "not known"] += 1
    means = {arm: fmean(ends[arm].values()) for arm in lab["order"]}
    scored: dict[str, Any] = {"seen": {arm: round(mean, 4) for arm, mean in sorted(means.items(), key=lambda x: -x[1])}}
    if len(means) > 2:
        scored["correlation"] = [round(x, 3) for x in vars(correlation(lab["ends"], ends)).values()]
    return scored | counts


def correlation(lab: Mapping[str, list[float]], ends: Mapping[str, Mapping[int, float]]) -> Interval:
    """Spearman's rank correlation over the arms; the interval draws the seeds of both."""
    arms, rng, drawn = list(lab), np.random.default_rng(0), []
    seeds = sorted(set.intersection(*(set(ends[arm]) for arm in arms)))
    ours = np.array([lab[arm] for arm in arms])
    theirs = np.array([[ends[arm][seed] for seed in seeds] for arm in arms])
    for _ in range(RESAMPLES):
        a, b = (x[:, rng.integers(x.shape[1], size=x.shape[1])].mean(1) for x in (ours, theirs))
        drawn.append(rank_correlation(a, b))
    low, high = np.quantile(drawn, [0.025, 0.975])
    return Interval(rank_correlation(ours.mean(1), theirs.mean(1)), float(low), float(high))


def overall(scored: Mapping[str, dict[str, Any]]) -> dict[str, Any]:
    """The share of hits among the decided pairs; the interval draws whole studies."""
    counts = np.array([[one["hits"], one["misses"]] for one in scored.values()])
    rng = np.random.default_rng(0)
    sums = np.array([counts[rng.integers(len(counts), size=len(counts))].sum(0) for _ in range(RESAMPLES)])
    shares = sums[:, 0] / sums.sum(1).clip(1)
    hits, misses = counts.sum(0).tolist()
    low, high = np.quantile(shares[sums.sum(1) > 0], [0.025, 0.975])
    unknown = sum(one["not known"] for one in scored.values())
    share = [round(float(x), 3) for x in (hits / max(1, hits + misses), low, high)]
    return {"hits": hits, "misses": misses, "not known": unknown, "share": share}


def main() -> None:
    """Predict, if no prediction is committed, else score it. Both are in runs/study/lab.json."""
    torch.set_num_threads(1)
    if not FILE.exists():
        FILE.write_text(json.dumps({"predicted": predict()}, indent=1) + "\n", encoding="utf-8")
        print(f"wrote {FILE}: commit it, then run this again to score it")
        return
    predicted = json.loads(FILE.read_text(encoding="utf-8"))["predicted"]
    scored = {name: score(name, lab) for name, lab in predicted.items() if len(lab["order"]) > 1}
    total = overall(scored)
    written = {"predicted": predicted, "scored": scored, "overall": total}
    FILE.write_text(json.dumps(written, indent=1) + "\n", encoding="utf-8")
    heads = ("study", "arms", "predicted pairs", "hits", "misses", "not known", "rank correlation")
    print(f"| {' | '.join(heads)} |\n{'|---' * len(heads)}|")
    for name, one in scored.items():
        pairs, rank = len(predicted[name]["pairs"]), one.get("correlation")
        said = f"{rank[0]:.2f} [{rank[1]:.2f}, {rank[2]:.2f}]" if rank else ""
        counts = f"{one['hits']} | {one['misses']} | {one['not known']}"
        print(f"| `{name}` | {len(one['seen'])} | {pairs} | {counts} | {said} |")
    print(f"\nhits {total['hits']}, misses {total['misses']}, share {total['share']}, not known {total['not known']}")
