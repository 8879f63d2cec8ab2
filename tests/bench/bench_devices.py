"""`make bench ARGS=devices`: whether a GPU gives the numbers that the CPU gives, for every preset on recorded steps.

Compared are weights, kept tokens, metrics, the loss and its gradient. The number is the largest difference, as a share
of the CPU's value or of 0.001, whichever is larger.
"""

from collections import defaultdict
from collections.abc import Iterator

import torch
from torch import Tensor

from rlcorr import TokenBatch, correct, evaluate
from rlcorr.losses.objective import policy_loss
from rlcorr.presets import PRESETS, Preset
from rlcorr.records import runs

RUNS = ("smol_kv_fp8", "gpu_smol_stale_6", "gpu_smol_lcm", "async", "kv_fp8_e5m2", "moe_bf16")
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


def main() -> None:
    if DEVICE.type == "cpu":
        print("torch sees no GPU on this machine.")
        return
    print(torch.cuda.get_device_name())
    largest: dict[str, float] = defaultdict(float)
    refused = 0
    for name in RUNS:
        run = runs.find_run(name)
        batch = runs.read_step(run, runs.list_steps(run)[-1]).batch
        on_gpu = TokenBatch(**{field: tensor.to(DEVICE) for field, tensor in batch.tensors().items()})
        for entry in PRESETS.values():
            if entry.loss.score_centering and batch.top_ids is None:
                refused += 1
                continue
            for (what, cpu), (_, gpu) in zip(numbers(batch, entry), numbers(on_gpu, entry), strict=True):
                largest[what] = max(largest[what], difference(cpu, gpu.cpu()))
    print(f"{len(RUNS)} runs, {len(PRESETS)} presets, without {refused} pairs that lack the lists of likely tokens")
    for what, value in largest.items():
        print(f"{what}: {value:.1e}")


def numbers(batch: TokenBatch, entry: Preset) -> Iterator[tuple[str, Tensor]]:
    """Yield what a correction gives, each with its name; the trained policy differs from the old one."""
    result, metrics = evaluate(batch, entry.config)
    yield "weights", result.weights
    yield "kept tokens", result.keep_mask
    yield "metrics", torch.tensor([*metrics.values()], dtype=torch.float64)
    columns = torch.arange(batch.response_mask.shape[1], device=batch.response_mask.device)
    assert batch.old_log_probs is not None
    theta = (batch.old_log_probs.float() + 0.01 * columns / len(columns)).requires_grad_()
    top = batch.old_top_log_probs if entry.loss.score_centering else None
    loss, _ = policy_loss(theta, batch, correct(batch, entry.config), entry.config, entry.loss, top_log_probs=top)
    loss.backward()
    assert theta.grad is not None
    yield "loss", loss.detach()
    yield "gradient", theta.grad


def difference(cpu: Tensor, gpu: Tensor) -> float:
    cpu, gpu = cpu.double(), gpu.double()
    return float(((cpu - gpu).abs() / cpu.abs().clamp(min=1e-3)).max())
