"""Both KLs between a trained model and its reference, against PyTorch's own KL on one answer at a time."""

from itertools import islice
from pathlib import Path

import pytest
import torch
from torch.distributions import Categorical, kl_divergence
from transformers import PreTrainedModel

from rlcorr.records import runs
from rlcorr.train.config.rollout import RolloutConfig, Sampling
from rlcorr.train.config.training import TrainConfig
from rlcorr.train.inputs.tasks import examples, get_task
from rlcorr.train.learner.policy import load_lm
from rlcorr.train.reference_kl import AT_ONCE, reference_kl
from rlcorr.train.rollout.collect import encode_example
from rlcorr.train.rollout.transformers_engine import TransformersEngine
from rlcorr.train.session.session import tokenizer_of

START = runs.ROOT / "warm_start" / "checkpoint"
ANSWERS = AT_ONCE + 3  # two parts, the second of which is smaller
TEMPERATURE = 0.7


def mean_kl(p: PreTrainedModel, q: PreTrainedModel) -> float:
    """The mean over the tokens of answers that `p` samples, each computed alone and without padding."""
    task, (tokenizer, ending_ids) = get_task("running_sum"), tokenizer_of(START)
    drawn = islice(examples(task, 0, held_out=True), ANSWERS)
    prompts = [encode_example(tokenizer, task, example) for example in drawn]
    engine = TransformersEngine(RolloutConfig(engine="transformers", dtype="float32"), p, ending_ids)
    values = []
    for first in range(0, ANSWERS, AT_ONCE):
        rows = prompts[first : first + AT_ONCE]
        sampling = Sampling(TEMPERATURE)
        answers = engine.generate(rows, n=1, max_tokens=task.max_tokens, sampling=sampling, seed=first).response_ids
        for prompt, answer in zip(rows, answers, strict=True):
            ids = torch.tensor([prompt + answer])
            with torch.no_grad():
                policies = [Categorical(logits=lm(ids).logits[0, len(prompt) - 1 : -1] / TEMPERATURE) for lm in (p, q)]
            values.append(kl_divergence(*policies))
    return float(torch.cat(values).mean())


def test_both_kls_are_those_of_one_answer_at_a_time(tmp_path: Path) -> None:
    start, trained = (load_lm(START, torch.device("cpu")) for _ in range(2))
    torch.manual_seed(0)
    with torch.no_grad():
        for weight in trained.parameters():
            weight += 0.02 * torch.randn_like(weight)
    trained.save_pretrained(tmp_path)
    config = TrainConfig(model=str(START), task="running_sum", rollout=RolloutConfig(temperature=TEMPERATURE))
    expected = {"kl": mean_kl(trained, start), "reverse_kl": mean_kl(start, trained)}
    assert reference_kl(config, tmp_path, ANSWERS) == pytest.approx(expected, rel=1e-4)
    assert abs(expected["kl"] - expected["reverse_kl"]) > 0.1 * expected["kl"]  # so neither is taken for the other


def test_an_untrained_model_has_not_moved() -> None:
    config = TrainConfig(model=str(START), task="running_sum")
    assert reference_kl(config, START, 4) == {"kl": 0.0, "reverse_kl": 0.0}
