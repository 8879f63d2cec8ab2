"""`make bench ARGS=hidden`: how many changed weights of SmolLM2-135M are the same once they are rounded to bfloat16.

Its published weights are numbers of bfloat16. Updates reach an engine in bfloat16 only where their sum exceeds half a
step of the format, 2⁻⁹ to 2⁻⁸ of the weight (arXiv:2602.03839 calls this the visibility threshold of bfloat16). Four
minutes on two cores.
"""

import tempfile
from dataclasses import replace
from pathlib import Path

import torch
from safetensors.torch import load_file

from rlcorr.measuring.metric_definitions import PREFIX
from rlcorr.records import runs
from rlcorr.train.config.packaged import SMOLLM2
from rlcorr.train.inputs import smollm2
from rlcorr.train.loop import train

STEPS, PROMPTS = 3, 8


def main() -> None:
    optim = replace(SMOLLM2.optim, precision="float32")
    config = replace(
        SMOLLM2, run="hidden", optim=optim, steps=STEPS, prompts_per_step=PROMPTS, eval_prompts=1, checkpoint_every=0,
        tensorboard=False,
    )  # fmt: skip
    before = load_file(smollm2.fetched() / "model.safetensors")
    with tempfile.TemporaryDirectory() as folder:
        runs.LOCAL = Path(folder)
        trained = train(config)
        after = load_file(trained / "checkpoint" / "model.safetensors")
        gaps = [row[f"{PREFIX}k3_kl"] for row in runs.read_metrics(trained)]
    changed = hidden = 0
    for name, tensor in before.items():
        differs = tensor.float() != after[name].float()
        changed += int(differs.sum())
        hidden += int((differs & (tensor.to(torch.bfloat16) == after[name].to(torch.bfloat16))).sum())
    print(f"{STEPS} updates with AdamW at {optim.learning_rate:g}, trainer in float32, engine in bfloat16:")
    print(f"{changed} weights changed; {hidden / changed:.1%} of them are the same in bfloat16")
    print(f"k3 of the steps: {', '.join(f'{gap:.1e}' for gap in gaps)}")
