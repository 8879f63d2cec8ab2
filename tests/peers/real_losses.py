"""Losses of whole answers against the weights that TRL's and ms-swift's own code gives, and M2PO against AReaL's mask:
`make peers` runs it.

Their methods come from their files alone (`real_systems.method_of`), in float64, on batches with gaps and both signs of
the advantage.
"""

import sys
from types import SimpleNamespace
from typing import Any

import torch
from real_systems import FOLDER, batch, method_of
from torch import Tensor

from rlcorr.config import CorrectionConfig, LossConfig, LossType
from rlcorr.correction import correct
from rlcorr.losses.per_token import ppo_clip
from rlcorr.losses.policy_losses import LOSSES, Inputs
from rlcorr.m2po import m2po
from rlcorr.types import TokenBatch

BATCHES = 500
TRAINERS: dict[LossType, str] = {
    "vespo": "trl/trl/trainer/grpo_trainer.py",
    "fipo": "ms_swift/swift/rlhf_trainers/grpo_trainer.py",
}


def theirs(name: LossType, given: TokenBatch, code: dict[str, Any]) -> Tensor:
    theta, old, a, mask = given.old_log_probs, given.rollout_log_probs, given.advantages, given.response_mask
    assert theta is not None
    assert a is not None
    if name == "vespo":  # π_θ/π_old in the product, and π_old/π_rollout, for some π_old
        between = (theta + old) / 2
        ratios = ((between - old) * mask).exp()
        return -code["get_gamma_weights"](a[:, :1], theta - between, mask, ratios) * a * theta
    args = SimpleNamespace(delta=None)
    me = SimpleNamespace(
        args=args, fipo_gamma=2 ** (-1 / 32), fipo_clip_range=0.2, fipo_clip_high_only=True, fipo_safety_threshold=4.0
    )
    weights = code["_compute_fipo_influence"](me, theta - old, (theta - old).exp(), a, mask)[0]
    return weights * ppo_clip(theta, old, a, low=0.2, high=0.2)


def compare(name: LossType) -> list[str]:
    code = method_of(FOLDER / TRAINERS[name], "get_gamma_weights", "_compute_fipo_influence")
    wrong = []
    for seed in range(BATCHES):
        given = batch(seed)
        wide = {key: x.double() for key, x in given.tensors().items() if x.is_floating_point()}
        given = given.replace(**wide)
        mask, theta, old, a = given.response_mask, wide["old_log_probs"], wide["rollout_log_probs"], wide["advantages"]
        ours = LOSSES[name].of(Inputs(theta * mask, old * mask, a * mask, mask), LossConfig(), None)
        expected = torch.where(mask, theirs(name, given, code), 0)
        if not torch.allclose(ours, expected, rtol=1e-9, atol=1e-12):
            wrong.append(f"{name}, batch {seed}: losses differ by up to {(ours - expected).abs().max().item():g}")
    print(f"{name}: {BATCHES} batches, {len(wrong)} differ")
    return wrong


def compare_m2po() -> list[str]:
    """AReaL's mask, in float64; no two log-ratios are equal."""
    functions = ("_apply_m2po_masking", "_get_m2po_loss_mask")
    code = method_of(FOLDER / "areal/areal/trainer/ppo/actor.py", *functions)
    wrong, dropped = [], 0
    for seed in range(BATCHES):
        given = batch(seed)
        assert given.old_log_probs is not None
        old, rollout, mask = given.old_log_probs.double(), given.rollout_log_probs.double(), given.response_mask
        wide = given.replace(old_log_probs=old, rollout_log_probs=rollout)
        for threshold in (1e-5, 0.04, 0.5, 10.0):
            kept = correct(wide, CorrectionConfig(rollout_rs=(m2po(wide, threshold),))).keep_mask
            theirs = code["_apply_m2po_masking"](rollout, old, mask, threshold)
            dropped += int((mask & ~theirs).sum())
            if not torch.equal(kept, theirs):
                wrong.append(f"M2PO, batch {seed}: other tokens at {threshold}")
    print(f"M2PO: {BATCHES} batches at four thresholds, {dropped} tokens dropped, {len(wrong)} differ")
    return wrong


def main() -> None:
    torch.set_num_threads(1)
    wrong = [line for name in TRAINERS for line in compare(name)] + compare_m2po()
    print("\n".join(wrong[:20]))
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
