"""Input/output vectors obtained by running verl and SkyRL themselves (commits in `GOLDEN["meta"]`)."""

import gzip
import json
import math
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from rlcorr import CorrectionConfig, RejectionRule, TokenBatch

GOLDEN: dict[str, Any] = json.loads(gzip.decompress((Path(__file__).parent / "golden" / "golden.json.gz").read_bytes()))
VERL = GOLDEN["verl-main"]
# Not comparable: a batch without tokens (verl raises), rows without tokens (verl counts them), a mask of fractions
# (ours is bool), sums in bf16 (ours in float32) and −inf (verl's k3_kl is infinite): the last three
# have tests of their own.
EMPTY_ROWS = {case for case, given in VERL["inputs"].items() if any(not any(map(float, row)) for row in given["mask"])}
CASES = sorted(
    set(VERL["inputs"]) - EMPTY_ROWS - {"zero_length_2x0", "fractional_mask", "bf16_6x10", "old_neginf_valid"}
)


def tensor(values: Any, dtype: torch.dtype = torch.float32) -> Tensor:
    """Nested lists, in which 'nan', 'inf' and '-inf' are strings."""

    def number(x: Any) -> Any:
        return [number(y) for y in x] if isinstance(x, list) else float(x)

    return torch.tensor(number(values), dtype=dtype)


def batch(case: str) -> TokenBatch:
    given = VERL["inputs"][case]
    dtype = getattr(torch, given["dtype"])
    shape = given["shape"]
    return TokenBatch(  # not from_log_probs, which refuses exact_bounds: its log-probs are above 0
        response_mask=tensor(given["mask"]).reshape(shape) != 0,
        rollout_log_probs=tensor(given["rollout_log_prob"], dtype).reshape(shape),
        old_log_probs=tensor(given["old_log_prob"], dtype).reshape(shape),
    )


def config(verl: dict[str, Any]) -> CorrectionConfig:
    """verl's fields as ours. verl's k1 bounds act on 1/r, so they are inverted and swapped here."""
    lower, upper = _pair(verl.get("rollout_is_threshold", 2.0))
    return CorrectionConfig(
        rollout_is=verl.get("rollout_is"),
        rollout_is_threshold=upper,
        rollout_is_threshold_lower=lower,
        rollout_is_mode="truncate" if lower is None else "mask",
        rollout_is_batch_normalize=verl.get("rollout_is_batch_normalize", False),
        rollout_rs=_rules(verl.get("rollout_rs"), verl.get("rollout_rs_threshold")),
        bypass_mode=verl.get("bypass_mode", False),
        loss_type=verl.get("loss_type", "ppo_clip"),
    )


def _pair(text: str | float) -> tuple[float | None, float]:
    lower, _, upper = str(text).rpartition("_")
    return (float(lower) if lower else None), float(upper)


def _rules(names: str | None, thresholds: str | float | None) -> tuple[RejectionRule, ...]:
    if names is None:
        return ()
    options = list(dict.fromkeys(name.strip() for name in names.split(",")))
    specs = [spec.strip() for spec in str(thresholds).split(",")]
    return tuple(_rule(o, s) for o, s in zip(options, specs * len(options) if len(specs) == 1 else specs, strict=False))


def _rule(name: str, spec: str) -> RejectionRule:
    lower, upper = _pair(spec)
    if not name.endswith("k1"):
        return RejectionRule.named(name, upper=upper)
    return RejectionRule.named(name, lower=1 / upper, upper=1 / (lower or 1 / upper))


# --- what both translations are tested with ---


def rule(name: str, lower: float | None = None, upper: float = math.inf) -> RejectionRule:
    return RejectionRule.named(name, lower=lower, upper=upper)


def with_rules(*rules: RejectionRule) -> CorrectionConfig:
    return CorrectionConfig(rollout_rs=rules)


def row(*ratios: float) -> TokenBatch:
    """One sequence with these ratios."""
    d = torch.tensor([ratios], dtype=torch.float64).log()
    return TokenBatch.from_log_probs(d - 8, torch.full_like(d, -8.0), torch.ones_like(d))


def assert_same_weights(got: Tensor, golden: Any, case: str, where: Tensor) -> None:
    want = tensor(golden, torch.float64).expand(got.shape)[where]
    tolerance = 1e-2 if batch(case).rollout_log_probs.dtype == torch.bfloat16 else 2e-5
    torch.testing.assert_close(got.double()[where], want, rtol=tolerance, atol=1e-6, equal_nan=True)
