"""`make bench ARGS=diagnosis`: what `triage` says of every recorded step, compared with the cause that its run has.

It is asked with all measured gaps, and with those of a model left out. It is

right      the pattern of the cause, or rounding to 16 bits called so
undecided  the sentence leaves several kinds of causes open, the real one among them
missed     a fault that is called healthy
wrong      another cause is named, or the real one is not among those that are left open
"""

from collections import Counter
from collections.abc import Callable
from typing import Any
from unittest.mock import patch

from gap_families import Family, families_of

from rlcorr.analysis import published
from rlcorr.analysis.published import Gap
from rlcorr.analysis.symptoms import HEALTHY
from rlcorr.analysis.triage import triage
from rlcorr.records import runs

NAMED = {"top-p": {"top-p mass"}, "stale head": {"stale tensor"}, "old weights": {"old weights"}}
"""Cause → the patterns that name it. Rounding to 16 bits is named by those of `HEALTHY`."""
OF_SIZE = {*HEALTHY, "undecided", "beyond rounding"}
"""Patterns that come from the size of the gap alone."""


LEFT_OUT: dict[str, Callable[[Gap], bool]] = {
    "all rows": lambda gap: True,
    "without SmolLM2": lambda gap: "SmolLM2" not in gap.model,
    "without the tiny models": lambda gap: "warm start" not in gap.model,
    "published rows only": lambda gap: not gap.ours,
}
"""Measured gaps that `triage` knows → which they are."""


def main() -> None:
    print("| run | cause | steps | k3 | what triage says | judged |")
    print("|---|---|---|---|---|---|")
    for name, path in committed().items():
        cause = cause_of(runs.read_manifest(path))
        looks = [judged(path, step, cause) for step in runs.list_steps(path)]
        k3 = sorted(one for one, _, _ in looks)
        said, verdicts = Counter(said for _, said, _ in looks), Counter(verdict for _, _, verdict in looks)
        print(
            f"| `{name}` | {cause} | {len(looks)} | {k3[0]:.1e} to {k3[-1]:.1e} | {listed(said)} | {listed(verdicts)} |"
        )
    print("\n| measured gaps | models | steps | right | undecided | missed | wrong | cannot be seen |")
    print("|---|---|---|---|---|---|---|---|")
    for rows, kept in LEFT_OUT.items():
        for size, verdicts in judged_with(kept).items():
            names = ("right", "undecided", "missed", "wrong", "cannot be seen")
            counts = " | ".join(str(verdicts[name]) for name in names)
            print(f"| {rows} | {size} | {sum(verdicts.values())} | {counts} |")


def committed() -> dict[str, Any]:
    return {name: path for name, path in runs.list_runs().items() if path.parent == runs.ROOT}


def judged_with(kept: Callable[[Gap], bool]) -> dict[str, Counter[str]]:
    """Return tiny or real → how many steps got which verdict, if `triage` knows these gaps alone."""
    totals: dict[str, Counter[str]] = {"tiny": Counter(), "real": Counter()}
    rows = tuple(gap for gap in published.gaps() if kept(gap))
    with patch.object(published, "gaps", lambda: rows):
        forget_sizes()
        for name, path in committed().items():
            cause = cause_of(runs.read_manifest(path))
            looks = [judged(path, step, cause) for step in runs.list_steps(path)]
            totals["real" if "smol" in name else "tiny"].update(verdict for _, _, verdict in looks)
    forget_sizes()
    return totals


def forget_sizes() -> None:
    for cached in (published.measured, published.by_cause):
        cached.cache_clear()


def cause_of(manifest: runs.RunManifest) -> str:
    """Return the largest cause of a run's mismatch, from its settings."""
    rollout = manifest.config["rollout"]
    if rollout["stale_lm_head"]:
        return "stale head"
    if rollout["staleness"]:
        return "old weights"
    if rollout["top_p"] < 1 and not rollout.get("support_replay"):
        return "top-p"
    if (manifest.model, manifest.trainer_dtype, rollout["dtype"]) == ("smollm2", "float32", "bfloat16"):
        return "hidden updates"  # the tiny models learn at rates whose updates bfloat16 does see
    if rollout["log_probs"] == "raw" and rollout["temperature"] != 1:
        return "temperature in neither log-prob"
    settings = manifest.engine_settings
    coarse = settings["kv_cache_dtype"] != "auto" or settings.get("quantization") == "fp8"
    return "fewer bits" if coarse or rollout.get("weights", "none") != "none" else "16 bits"


def judged(run: Any, step: int, cause: str) -> tuple[float, str, str]:
    """Return k3 of a step, the patterns that triage finds, and whether they are right."""
    symptoms = triage(runs.read_step(run, step).batch)
    # "outlier" gives k3 with and without the tokens that make it, and names no cause.
    patterns, k3 = {symptom.pattern for symptom in symptoms} - {"outlier"}, symptoms[0].numbers["k3"]
    said = ", ".join(symptom.pattern for symptom in symptoms)
    healthy = patterns <= set(HEALTHY)
    if cause == "temperature in neither log-prob":
        return k3, said, "cannot be seen" if healthy else "wrong"
    if patterns & NAMED.get(cause, set()) or (cause == "16 bits" and healthy):
        return k3, said, "right"
    if healthy and cause not in families_of(k3):
        return k3, said, "missed"
    left_open: set[Family] = set(families_of(k3))
    return k3, said, "undecided" if patterns <= OF_SIZE and cause in left_open else "wrong"


def listed(counts: Counter[str]) -> str:
    return ", ".join(f"{what} {count}" for what, count in counts.most_common())
