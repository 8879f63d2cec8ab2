"""mini.py on a language model: vLLM draws the answers, and a model of transformers is trained on them.

`python lessons/mini_vllm.py [STEPS [SYNC_EVERY [MODEL]]]` prints the mean reward and k3 of every step. MODEL is tiny,
which this repository has, or smollm2, whose 93 MB are downloaded once. Where vLLM is not installed, transformers draws
the answers, in the same number format.

Of mini.py it takes advantages, capped, kept and loss. The library has the rest:

    start_engine(…)            an engine: engine.generate(prompts) → token ids and their log-probs; engine.sync(weights)
    RolloutWorker, collect     prompts of a task → answers of the engine with their rewards
    batch_of(…)                these as padded tensors: rollout_log_probs (B, T), response_mask (B, T), rewards (B,)
    Policy(model)(batch, 1.0)  the trainer's log-probs of the same tokens at temperature 1, (B, T)
    engine_weights(…)          the trainer's weights under the names that the engine expects
    ALONE                      this process, which trains without others
"""

import itertools
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from mini_pieces import load_mini
from torch.optim import Adam, Optimizer

from rlcorr.ratios import k3
from rlcorr.records.runs import ROOT
from rlcorr.train.config.rollout import RolloutConfig, Sampling
from rlcorr.train.inputs import smollm2
from rlcorr.train.inputs.tasks import Example, examples, get_task
from rlcorr.train.inputs.tokenizer import eos_ids, load_tokenizer
from rlcorr.train.learner.policy import Policy, engine_weights, load_lm
from rlcorr.train.learner.ranks import ALONE
from rlcorr.train.rollout.collect import RolloutWorker, batch_of, collect
from rlcorr.train.rollout.start import start_engine
from rlcorr.types import TokenBatch


class Setting(NamedTuple):
    """What is trained on what; a step has `prompts` prompts with ANSWERS answers to each."""

    model: Path
    task: str
    prompts: int
    learning_rate: float


ANSWERS = 8
TINY = Setting(ROOT / "warm_start" / "checkpoint", "addition", 32, 3e-4)
MODELS = ("tiny", "smollm2")
mini = load_mini()


def setting_of(name: str) -> Setting:
    return TINY if name == "tiny" else Setting(smollm2.fetched(), "sum_questions", 8, 4e-5)


def start(setting: Setting, log: Path) -> tuple[Policy, RolloutWorker]:
    """Return the model that is trained, in float32, and an engine with the same weights in bfloat16."""
    tokenizer = load_tokenizer(setting.model)
    stops = eos_ids(setting.model, tokenizer)
    engine = start_engine(RolloutConfig(dtype="bfloat16"), setting.model, ALONE, stops, log)
    policy = Policy(load_lm(setting.model, ALONE.device), critic=False)
    task = replace(get_task(setting.task), system_message=smollm2.SYSTEM)  # the tiny model has no chat template
    return policy, RolloutWorker(engine, tokenizer, task, stops)


def draw(worker: RolloutWorker, prompts: list[Example], step: int) -> TokenBatch:
    """Return the engine's answers, those to one prompt in neighbouring rows, with its log-probs and their rewards."""
    drawn = collect(worker, prompts, samples=ANSWERS, sampling=Sampling(), version=0, seed=step)
    return batch_of(drawn, ALONE.device)


def update(policy: Policy, optimizer: Optimizer, batch: TokenBatch) -> tuple[float, float]:
    """Train the policy on one batch, as mini.py does. Return the mean reward, and the mean k3 before the step."""
    assert batch.rewards is not None
    engine_logp, mask = batch.rollout_log_probs, batch.response_mask
    trainer_logp = policy(batch, 1.0).log_probs
    weights = mini.capped(trainer_logp, engine_logp, mask, None, 2.0)
    weights = weights * mini.kept(trainer_logp, engine_logp, mask, 0.5, 2.0)
    advantage = mini.advantages(batch.rewards.view(-1, ANSWERS)).flatten()
    optimizer.zero_grad()
    mini.loss(trainer_logp, weights, mask, advantage).backward()
    optimizer.step()
    return float(batch.rewards.mean()), float(k3((trainer_logp.detach() - engine_logp)[mask]).mean())


def train(
    policy: Policy, worker: RolloutWorker, setting: Setting, steps: int, sync_every: int = 1
) -> Iterator[tuple[float, float]]:
    """Yield what `update` returns, step by step. The engine gets the new weights after every `sync_every` steps."""
    optimizer, stream = Adam(policy.parameters(), setting.learning_rate), examples(worker.task, seed=0)
    for step in range(1, steps + 1):
        batch = draw(worker, list(itertools.islice(stream, setting.prompts)), step)
        result = update(policy, optimizer, batch)
        if step % sync_every == 0:
            worker.engine.sync(engine_weights(policy.state_dict(), policy.lm))
        yield result


def main(steps: str = "20", sync_every: str = "1", model: str = "tiny") -> None:
    if model not in MODELS:
        sys.exit(f"no model {model!r}; there are {', '.join(MODELS)}.")
    setting = setting_of(model)
    with tempfile.TemporaryDirectory() as folder:
        policy, worker = start(setting, Path(folder) / "engine.log")
        print(f"{worker.engine.description['name']} draws. Step, reward, k3:")
        for step, (reward, distance) in enumerate(train(policy, worker, setting, int(steps), int(sync_every)), 1):
            print(f"{step:4} {reward:7.2f} {distance:9.1e}", flush=True)
        worker.engine.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
