"""Settings for the model from a Python package. They replace the defaults, which are made for the tiny models."""

import dataclasses

from rlcorr.train.config.learning import AdvantageConfig, OptimConfig
from rlcorr.train.config.training import TRAINER_LOSS, TrainConfig
from rlcorr.train.inputs import smollm2

_OPTIM = OptimConfig(
    epochs=1, minibatches=1, microbatch_tokens=512, learning_rate=2e-5, final_learning_rate=2e-5, precision="bfloat16"
)
SMOLLM2 = TrainConfig(
    model=smollm2.NAME, task="sum_questions", train_prompts=128, prompts_per_step=16, samples_per_prompt=8, steps=20,
    eval_every=5, eval_prompts=64, advantage=AdvantageConfig(estimator="grpo"), optim=_OPTIM,
    loss=dataclasses.replace(TRAINER_LOSS, use_kl_loss=False),
)  # fmt: skip
"""Settings of `--model smollm2`, unless an option says otherwise. Its learning rate is smaller than the tiny models'.

With 2,048 tokens per micro-batch a step took 39 s on two cores, and the run 7.5 GB. Smaller micro-batches need less
memory and more time (`bench_real` of commit `dc1e367`).
"""


def has_fast_bfloat16() -> bool:
    """Check whether PyTorch multiplies matrices of bfloat16 quickly here.

    On a processor of Intel or AMD without AVX-512 it does so one number at a time: on two such cores a step of SmolLM2
    took 20 minutes with a trainer in bfloat16, and three in float32 (`rlcorr train --model smollm2 --steps 2`, with and
    without `--optim.precision float32`).
    """
    import torch

    cpu = torch.cpu.get_capabilities()
    return torch.cuda.is_available() or cpu.get("architecture") != "x86_64" or bool(cpu.get("avx512_bw"))
