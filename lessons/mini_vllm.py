"""mini.py on a language model: vLLM draws the answers, and a model of transformers is trained on them.

`python lessons/mini_vllm.py [STEPS [SYNC_EVERY]]` prints the mean reward and k3 of every step. Where vLLM is not
installed, transformers draws the answers, in the same number format.
"""

import itertools
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from mini import advantages, kept, loss, truncated
from torch.optim import Adam, Optimizer

from rlcorr.ratios import k3
from rlcorr.records.runs import ROOT
from rlcorr.train.config.rollout import RolloutConfig, Sampling
from rlcorr.train.inputs.tasks import Example, examples, get_task
from rlcorr.train.inputs.tokenizer import eos_ids, load_tokenizer
from rlcorr.train.learner.policy import Policy, engine_weights, load_lm
from rlcorr.train.learner.ranks import ALONE
from rlcorr.train.rollout.collect import RolloutWorker, batch_of, collect
from rlcorr.train.rollout.start import start_engine
from rlcorr.types import TokenBatch

MODEL = ROOT / "warm_start" / "checkpoint"
PROMPTS, ANSWERS = 32, 8
"""Of a step: its prompts, and the answers to each."""


def start(log: Path) -> tuple[Policy, RolloutWorker]:
    """The model that is trained, in float32; and an engine with the same weights in bfloat16, which is to add."""
    tokenizer = load_tokenizer(MODEL)
    stops = eos_ids(MODEL, tokenizer)
    engine = start_engine(RolloutConfig(dtype="bfloat16"), MODEL, ALONE, stops, log)
    policy = Policy(load_lm(MODEL, ALONE.device), critic=None)
    return policy, RolloutWorker(engine, tokenizer, get_task("addition"), stops)


def draw(worker: RolloutWorker, prompts: list[Example], step: int) -> TokenBatch:
    """Answers of the engine, those to one prompt in a row: log-probs of the policy that drew them, and rewards."""
    drawn = collect(worker, prompts, samples=ANSWERS, sampling=Sampling(), version=0, seed=step)
    return batch_of(drawn, ALONE.device)


def update(policy: Policy, optimizer: Optimizer, batch: TokenBatch) -> tuple[float, float]:
    """One step of the policy, as in mini.py; the mean reward, and the mean k3 between engine and trainer before it."""
    assert batch.rewards is not None
    engine, mask = batch.rollout_log_probs, batch.response_mask
    trainer = policy(batch, 1.0).log_probs
    weights = truncated(trainer, engine, mask, None, 2.0) * kept(trainer, engine, mask, 0.5, 2.0)
    optimizer.zero_grad()
    loss(trainer, weights, mask, advantages(batch.rewards.view(-1, ANSWERS)).flatten()).backward()
    optimizer.step()
    return float(batch.rewards.mean()), float(k3((trainer.detach() - engine)[mask]).mean())


def train(policy: Policy, worker: RolloutWorker, steps: int, sync_every: int = 1) -> Iterator[tuple[float, float]]:
    """What `update` returns, step by step; the engine gets the new weights after every `sync_every` of them."""
    optimizer, stream = Adam(policy.parameters(), 3e-4), examples(worker.task, seed=0)
    for step in range(1, steps + 1):
        batch = draw(worker, list(itertools.islice(stream, PROMPTS)), step)
        result = update(policy, optimizer, batch)
        if step % sync_every == 0:
            worker.engine.sync(engine_weights(policy.state_dict(), policy.lm))
        yield result


def main(steps: int = 20, sync_every: int = 1) -> None:
    with tempfile.TemporaryDirectory() as folder:
        policy, worker = start(Path(folder) / "engine.log")
        print(f"{worker.engine.description['name']} draws. Step, reward, k3:")
        for step, (reward, distance) in enumerate(train(policy, worker, steps, sync_every), 1):
            print(f"{step:4} {reward:7.2f} {distance:9.1e}", flush=True)
        worker.engine.close()


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
