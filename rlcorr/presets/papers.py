"""Presets of methods that are papers with code, but no system of their own: SAO and CTPO."""

from typing import Any

from rlcorr.presets.notes import CTPO, FAILURES, SAO
from rlcorr.presets.parts import Preset, masked, truncated

_PG: dict[str, Any] = {"bypass_mode": True, "loss_type": "reinforce"}
_STRICT = "SAO also drops a ratio that is exactly on a bound"

# SAO's loss is −f(r) A log π_θ with r = π_θ/π_rollout, and f(r) = r if 1 − ε_l < r < 1 + ε_h, else 0.
SAO_PRESETS = {
    "sao_reasoning": Preset(
        "SAO",
        masked(0.7, 6.0, **_PG),
        f"{SAO}, ε_l 0.3 and ε_h 5.0, its numbers for reasoning, which are the defaults of unsloth's pull request 9309 "
        f"(open); {_STRICT}",
        FAILURES["token_band"],
    ),
    "sao_coding": Preset(
        "SAO",
        masked(0.2, 4.0, **_PG),
        f"{SAO}, ε_l 0.8 and ε_h 3.0, its numbers for coding agents, which Lego-RL's pull request 8 also takes; "
        f"{_STRICT}",
        FAILURES["token_band"],
    ),
}

CTPO_PRESETS = {
    "ctpo_cumprod": Preset(
        "CTPO",
        truncated("sequence", 5.0, loss_type="ctpo"),
        f"github.com/horizon-llm/CTPO (commit acc4021), ctpo.sh: loss cum-token-cumprod-la with la_clip_low 0.025, "
        f"la_clip_high 0.05, la_clip_c 0.05 and power 0.5, and verl's rollout_is sequence up to 5; the paper has "
        f"neither la_clip_c nor these weights; {CTPO}",
        FAILURES["ctpo"],
    ),
}
