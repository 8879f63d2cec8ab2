"""Writes tests/support/golden/vime_centering.json: gradients by vime's own score centering on random distributions.

    PYTHONPATH=.:tests/support python tests/peers/vime_centering.py VIME

VIME is a checkout at 2b83ea20: vime/utils/score_centering.py and ppo_utils.py. vime is on no index; the two functions
alone are run. They compute in float32, and see the whole distribution, where the tail that they model is empty.
"""

import json
import sys
from pathlib import Path

import torch
from real_systems import method_of

OUT = Path(__file__).resolve().parent.parent / "support" / "golden" / "vime_centering.json"
SETTINGS = [{"mode": "none"}, {"mode": "tis", "low": 0.0, "high": 1.2}, {"mode": "mis", "low": 0.7, "high": 1.3}]
PLACES, VOCABULARY, SEEDS = 6, 5, 4


def main(checkout: str) -> None:
    utils = Path(checkout) / "vime/utils"
    code = method_of(utils / "ppo_utils.py", "importance_weights")
    centering = method_of(utils / "score_centering.py", "score_centering_correction")
    centering.update(importance_weights=code["importance_weights"])
    cases = []
    for seed in range(SEEDS):
        rng = torch.Generator().manual_seed(seed)
        logits = torch.randn(PLACES, VOCABULARY, generator=rng).round(decimals=3)
        engine = (logits + 0.4 * torch.randn(PLACES, VOCABULARY, generator=rng)).round(decimals=3)
        tokens = torch.randint(VOCABULARY, (PLACES,), generator=rng)
        advantages = torch.randn(PLACES, generator=rng).round(decimals=2)
        case = {"logits": logits.tolist(), "engine": engine.tolist(), "tokens": tokens.tolist()}
        gradients = []
        for settings in SETTINGS:
            leaf = logits.clone().requires_grad_()
            p, q = leaf.log_softmax(-1), engine.log_softmax(-1)
            correction, _, _ = centering["score_centering_correction"](p, q, **settings)
            drawn, sampled = (x.gather(-1, tokens[:, None])[:, 0] for x in (p, q))
            ratio = (drawn - sampled).exp().detach()
            weight = code["importance_weights"](ratio, *settings.values())
            losses = -advantages * (weight * drawn - correction)
            (gradient,) = torch.autograd.grad(losses.sum(), leaf)
            gradients.append([[float(f"{x:.6g}") for x in row] for row in gradient.tolist()])
        cases.append(case | {"advantages": advantages.tolist(), "gradients": gradients})
    of = "vllm-project/vime 2b83ea20, vime/utils/score_centering.py"
    OUT.write_text(json.dumps({"of": of, "settings": SETTINGS, "cases": cases}, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
