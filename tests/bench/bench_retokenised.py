"""`make bench ARGS=retokenised`: recorded answers of SmolLM2 that become other tokens if their text is encoded again.

Text is what an agent's framework passes on. The tokens that the engine sampled are decoded and encoded again, as a
trainer does that gets text. A minute.
"""

import torch

from rlcorr.records import runs
from rlcorr.train.inputs import smollm2
from rlcorr.train.inputs.tokenizer import load_tokenizer

RUNS = ("smol_bf16_both", "smol_top_p", "gpu_smol_bf16", "smol_long", "gpu_smol_long")


def bench_retokenised() -> None:
    tokenizer = load_tokenizer(smollm2.fetched())
    print("| run | answers | tokens per answer | other tokens | another number of tokens |")
    print("|---|---|---|---|---|")
    for name in RUNS:
        lengths, changed, resized = [], 0, 0
        run = runs.find_run(name)
        for step in runs.list_steps(run):
            batch = runs.read_step(run, step).batch
            for ids, mask in zip(batch.tensors()["response_ids"], batch.response_mask, strict=True):
                sampled = ids[mask].tolist()
                encoded = tokenizer.encode(tokenizer.decode(sampled), add_special_tokens=False)
                lengths.append(float(len(sampled)))
                changed += encoded != sampled
                resized += len(encoded) != len(sampled)
        mean = float(torch.tensor(lengths).mean())
        print(f"| {name} | {len(lengths):,} | {mean:.0f} | {changed} | {resized} |")
