"""Writes tests/support/golden/unirl_losses.json: losses and gradients by UniRL's own functions on random answers.

    PYTHONPATH=.:tests/support python tests/peers/unirl_losses.py UNIRL

UNIRL is a checkout: of unirl/algorithms, drpo.py at 1a7b501e and cppo.py at 30899fcf were taken. UniRL is on no index;
of its files the functions alone are run, in float64 where they do not cast, and its packed tokens are put into rows.
"""

import json
import sys
from pathlib import Path
from typing import Any

import torch
from real_systems import batch, method_of

OUT = Path(__file__).resolve().parent.parent / "support" / "golden" / "unirl_losses.json"
OF = "Tencent-Hunyuan/UniRL, unirl/algorithms: drpo.py at 1a7b501e, cppo.py at 30899fcf"
BATCHES = 6
SETTINGS: dict[str, list[dict[str, float]]] = {
    "drpo": [{"epsilon": 12.5}, {"epsilon": 0.3}],
    "cppo": [{"delta": 0.2, "w_min": 0.8, "delta_b": 0.02}, {"delta": 0.05, "w_min": 0.3, "delta_b": 0.01}],
}


def answers(seed: int) -> dict[str, list[list[float]]]:
    """log π_θ, log π_old and A of some answers, with few digits."""
    given = batch(seed)
    assert given.old_log_probs is not None
    assert given.advantages is not None
    columns = {"theta": given.old_log_probs, "old": given.rollout_log_probs, "advantages": given.advantages}
    rounded = {name: x.double().round(decimals=4) for name, x in columns.items()}
    lengths = given.response_mask.sum(-1).tolist()
    return {
        name: [row[:length].tolist() for row, length in zip(x, lengths, strict=True)] for name, x in rounded.items()
    }


def case(name: str, code: dict[str, Any], settings: dict[str, float], rows: dict[str, Any]) -> dict[str, Any]:
    """Loss and derivative of every token, in the order of the rows."""
    theta, old, advantages = (
        torch.tensor([number for row in column for number in row], dtype=torch.float64) for column in rows.values()
    )
    theta.requires_grad_()
    packed = {"new_logp": theta, "old_logp": old, "advantages": advantages, **settings}
    if name == "cppo":
        packed["lengths"] = torch.tensor([len(row) for row in rows["theta"]])
    losses, _ = code[f"_{name}_loss"](**packed)
    (gradient,) = torch.autograd.grad(losses.sum(), theta)
    outputs = {"loss": losses, "gradient": gradient}
    return {"loss_type": name, "settings": settings} | {
        key: [float(f"{number:.9g}") for number in x.tolist()] for key, x in outputs.items()
    }


def main(checkout: str) -> None:
    code: dict[str, Any] = {}
    for name in SETTINGS:
        space = method_of(Path(checkout) / f"unirl/algorithms/{name}.py", f"_{name}_loss", f"_{name}_mask")
        code[f"_{name}_loss"] = space[f"_{name}_loss"]
    batches = []
    for rows in map(answers, range(BATCHES)):
        cases = [case(name, code, chosen, rows) for name, settings in SETTINGS.items() for chosen in settings]
        batches.append(rows | {"cases": cases})
    OUT.write_text(json.dumps({"of": OF, "batches": batches}, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
