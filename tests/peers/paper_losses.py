"""Writes tests/support/golden/paper_losses.json: losses and gradients by the code of CTPO and of SkyRL's DPPO.

    PYTHONPATH=.:tests/support:tests/peers python tests/peers/paper_losses.py CTPO SKYRL

CTPO is a checkout of horizon-llm/CTPO at acc4021, SKYRL the unpacked wheel of skyrl 0.4.0, which needs Python 3.12:
`pip download --no-deps --python-version 3.12 --only-binary=:all: skyrl==0.4.0`. The functions of the losses alone are
run, in float64. Where they average over tokens, a stand-in returns the loss of each token.
"""

import ast
import json
import math
import sys
import typing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor
from unirl_losses import answers

OUT = Path(__file__).resolve().parent.parent / "support" / "golden" / "paper_losses.json"
OF = "horizon-llm/CTPO at acc4021, core_algos.py: cum-token-cumprod-la; skyrl 0.4.0, ppo_utils.py: dppo_policy_loss"
BATCHES = 6
CTPO_SETTINGS: list[dict[str, float]] = [
    {"clip_low": 0.025, "clip_high": 0.05, "clip_c": 0.05, "power": 0.5},
    {"clip_low": 0.3, "clip_high": 0.4, "clip_c": 0.8, "power": 0.25},
]
DPPO_SETTINGS: list[tuple[str, float, float]] = [
    ("binary_tv", 0.2, 0.2), ("binary_kl", 0.05, 0.05), ("binary_tv", 0.02, 0.05), ("binary_kl", 0.001, 0.01),
]  # fmt: skip


class Config(SimpleNamespace):
    """A configuration that is read by attribute and by `get`."""

    def get(self, name: str, default: Any) -> Any:
        """Return the option of this name, or the default."""
        return getattr(self, name, default)


def code_of(path: Path, *names: str, **given: Any) -> dict[str, Any]:
    """Run these functions of a file, without its decorators and imports."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    chosen = [n for n in tree.body if isinstance(n, ast.FunctionDef) and n.name in names]
    for function in chosen:
        function.decorator_list = []
    space: dict[str, Any] = {"torch": torch, "math": math, **vars(typing), **given}
    exec(compile(ast.fix_missing_locations(ast.Module(list(chosen), [])), str(path), "exec"), space)
    return space


def padded(rows: dict[str, list[list[float]]]) -> dict[str, Tensor]:
    """Return the columns as (B, T) tensors in float64, and the mask of the real tokens."""
    lengths = torch.tensor([len(row) for row in rows["theta"]])
    mask = torch.arange(int(lengths.max())) < lengths[:, None]
    tables = {
        name: torch.zeros(mask.shape, dtype=torch.float64).masked_scatter(
            mask, torch.tensor([x for row in column for x in row], dtype=torch.float64)
        )
        for name, column in rows.items()
    }
    return tables | {"mask": mask}


def of_ctpo(checkout: str, given: dict[str, Tensor], theta: Tensor, settings: Any) -> Tensor:
    """Return CTPO's loss of each token."""
    mean = SimpleNamespace(masked_mean=lambda x, mask: (x * mask).sum() / mask.sum())
    code = code_of(
        Path(checkout) / "verl/trainer/ppo/core_algos.py", "_compute_policy_loss_cum_token_la_impl",
        verl_F=mean, ActorConfig=Config, agg_loss=lambda loss_mat, **_: loss_mat,
    )  # fmt: skip
    options = {f"la_{name}": number for name, number in settings.items() if name != "power"}
    config = Config(**options, clip_ratio_la_power=settings["power"], global_batch_info={})
    columns = (given["old"], theta, given["advantages"], given["mask"])
    return code["_compute_policy_loss_cum_token_la_impl"](*columns, config=config)[0]


def of_dppo(wheel: str, given: dict[str, Tensor], theta: Tensor, settings: Any) -> Tensor:
    """Return the loss of each token by SkyRL's DPPO."""
    utils = Path(wheel) / "skyrl/backends/skyrl_train/utils"
    exp = code_of(utils / "torch_utils.py", "safe_exp_delta")["safe_exp_delta"]
    code = code_of(
        utils / "ppo_utils.py", "dppo_policy_loss", safe_exp_delta=exp,
        AlgorithmConfig=Config, masked_mean=lambda x, mask: (x * mask).sum() / mask.sum(),
        apply_off_policy_correction=lambda loss, *rest: (loss, rest[2], {}), reduce_loss=lambda loss, mask: loss,
    )  # fmt: skip
    kind, low, high = settings
    config = Config(dppo=Config(dppo_type=kind, delta_low=low, delta_high=high), off_policy_correction=None)
    columns = (theta, given["old"] + 0.1, given["advantages"], config, given["mask"], given["old"])  # π_old is not read
    return code["dppo_policy_loss"](*columns)[0]


def main(ctpo: str, skyrl: str) -> None:
    """Write the file."""
    batches = []
    for rows in map(answers, range(BATCHES)):
        given, cases = padded(rows), []
        runs: list[tuple[str, Any, str, Any]] = [("ctpo", of_ctpo, ctpo, settings) for settings in CTPO_SETTINGS]
        runs += [("dppo", of_dppo, skyrl, settings) for settings in DPPO_SETTINGS]
        for name, of, folder, settings in runs:
            theta = given["theta"].clone().requires_grad_()
            losses = of(folder, given, theta, settings)
            (gradient,) = torch.autograd.grad(losses[given["mask"]].sum(), theta)
            numbers = {"loss": losses, "gradient": gradient}
            cases.append(
                {"name": name, "settings": settings}
                | {key: [float(f"{x:.9g}") for x in table[given["mask"]].tolist()] for key, table in numbers.items()}
            )
        batches.append(rows | {"cases": cases})
    OUT.write_text(json.dumps({"of": OF, "batches": batches}, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
