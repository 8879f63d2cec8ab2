"""`make bench ARGS=diagnosis`: what `triage` says of every recorded step, compared with the cause that its run has.

right      the pattern of the cause, or rounding called rounding
undecided  the sentence lists several causes, the real one among them
missed     a fault that is called healthy
wrong      another cause is named
"""

from collections import Counter
from typing import Any

from rlcorr.analysis.published import WORDS, KnownCause, matching_causes
from rlcorr.analysis.symptoms import HEALTHY
from rlcorr.analysis.triage import triage
from rlcorr.records import runs

NAMED = {"top-p": {"top-p mass"}, "stale head": {"stale tensor"}, "old weights": {"beyond rounding", "old weights"}}
"""Cause → the patterns that name it. Rounding is named by those of `HEALTHY`."""


def main() -> None:
    print("| run | cause | steps | k3 | what triage says | judged |")
    print("|---|---|---|---|---|---|")
    totals: dict[str, Counter[str]] = {"tiny": Counter(), "real": Counter()}
    for name, path in runs.list_runs().items():
        if path.parent != runs.ROOT:
            continue
        cause, size = cause_of(runs.read_manifest(path)), "real" if "smol" in name else "tiny"
        looks = [judged(path, step, cause) for step in runs.list_steps(path)]
        totals[size].update(verdict for _, _, verdict in looks)
        k3 = sorted(one for one, _, _ in looks)
        said, verdicts = Counter(said for _, said, _ in looks), Counter(verdict for _, _, verdict in looks)
        print(
            f"| `{name}` | {cause} | {len(looks)} | {k3[0]:.1e} to {k3[-1]:.1e} | {listed(said)} | {listed(verdicts)} |"
        )
    for size, verdicts in totals.items():
        print(f"{size} models, {sum(verdicts.values())} steps: {listed(verdicts)}")


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
    return "rounding"


def judged(run: Any, step: int, cause: str) -> tuple[float, str, str]:
    """Return k3 of a step, the patterns that triage finds, and whether they are right."""
    symptoms = triage(runs.read_step(run, step).batch)
    patterns, k3 = {symptom.pattern for symptom in symptoms}, symptoms[0].numbers["k3"]
    said = ", ".join(symptom.pattern for symptom in symptoms)
    healthy = patterns <= set(HEALTHY)
    if cause == "temperature in neither log-prob":
        return k3, said, "cannot be seen" if healthy else "wrong"
    if patterns & NAMED.get(cause, set(HEALTHY)):
        return k3, said, "right"
    if healthy:
        return k3, said, "missed"
    listed_causes: set[KnownCause] = {place.cause for place in matching_causes(k3)}
    others: dict[str, set[KnownCause]] = {"old weights": {"age"}, "hidden updates": {"hidden"}}
    among = listed_causes & others.get(cause, set(WORDS) - {"age", "hidden"})
    return k3, said, "undecided" if patterns == {"undecided"} and among else "wrong"


def listed(counts: Counter[str]) -> str:
    return ", ".join(f"{what} {count}" for what, count in counts.most_common())
