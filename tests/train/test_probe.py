"""The probe before the first step: each known pattern is recognised by what it looks like, on the warm start."""

import copy
import itertools
import json
import math
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny import CPU, tiny_config
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from rlcorr.errors import UsageError
from rlcorr.train.config.rollout import RolloutConfig, Sampling
from rlcorr.train.config.training import WARM_START, TrainConfig
from rlcorr.train.inputs.tasks import examples, get_task
from rlcorr.train.inputs.tokenizer import EOS_ID, encode, load_tokenizer
from rlcorr.train.learner.policy import Policy, load_lm
from rlcorr.train.loop import train
from rlcorr.train.rollout.engine import RolloutEngine, Samples
from rlcorr.train.rollout.probe import Probe, probe
from rlcorr.train.rollout.start import start_engine
from rlcorr.train.rollout.sync_proof import SyncProof, prove_sync
from rlcorr.train.rollout.transformers_engine import TransformersEngine
from rlcorr.train.session import session

pytestmark = pytest.mark.slow  # a real engine, and trainings

MAX_TOKENS = 5
NOTHING_FOUND = SyncProof(k3=0.0, left_behind=[])


@pytest.fixture(scope="module")
def lm() -> PreTrainedModel:
    return load_lm(WARM_START, CPU)


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerFast:
    return load_tokenizer(WARM_START)


@pytest.fixture(scope="module")
def prompts(tokenizer: PreTrainedTokenizerFast) -> list[list[int]]:
    held_out = itertools.islice(examples(get_task("addition"), 0, held_out=True), 64)
    return [encode(tokenizer, example.prompt) for example in held_out]


def rollout(**changes: Any) -> RolloutConfig:
    return RolloutConfig(**{"engine": "transformers", "dtype": "float32", **changes})


# --- what the run can be set to ---


@pytest.mark.parametrize(
    ("changes", "pattern", "said"),
    [
        ({}, "precision", "rounding in float32"),
        ({"dtype": "bfloat16"}, "precision", "rounding in bfloat16"),
        ({"dtype": "bfloat16", "weights": "int8"}, "precision", "rounding in int8_weights"),
        ({"temperature": 0.7, "log_probs": "raw", "dtype": "bfloat16"}, "temperature", "it scores at 0.7"),
        ({"temperature": 1.0, "trainer_temperature": 1.3}, "temperature", "at 1 the trainer agrees"),
        ({"temperature": 0.7, "log_probs": "raw", "trainer_temperature": 1.0}, "precision", ""),
        ({"top_k": 2, "dtype": "bfloat16"}, "top-p mass", "top_p or top_k cut off"),
        ({"top_p": 0.8, "log_probs": "raw"}, "precision", ""),  # raw log-probs know nothing of a cut
        ({"stale_lm_head": True, "dtype": "bfloat16"}, "stale tensor", "a sync leaves lm_head.weight behind"),
    ],
    ids=lambda value: " ".join(f"{k}={v}" for k, v in value.items()) if isinstance(value, dict) else str(value)[:12],
)
def test_a_setting_is_recognised(
    changes: dict[str, Any], pattern: str, said: str, lm: PreTrainedModel, prompts: list[list[int]],
    tokenizer: PreTrainedTokenizerFast,
) -> None:  # fmt: skip
    config = rollout(**changes)
    engine, policy = TransformersEngine(config, lm, [EOS_ID]), Policy(copy.deepcopy(lm))
    proof = prove_sync(engine, policy, config)
    measured = probe(engine, policy, config, tokenizer, prompts, max_tokens=MAX_TOKENS, proof=proof)
    assert measured.pattern == pattern, measured
    assert said in measured.sentence


# --- what can go wrong ---


def other_weights(lm: PreTrainedModel) -> PreTrainedModel:
    """Every matrix with a tenth of its size in noise."""
    other, generator = copy.deepcopy(lm), torch.Generator().manual_seed(0)
    with torch.no_grad():
        for tensor in other.parameters():
            tensor.add_(0.1 * tensor.abs().mean() * torch.randn(tensor.shape, generator=generator))
    return other


class OtherPrompt:
    """An engine that puts something before every prompt, as another chat template does."""

    def __init__(self, engine: RolloutEngine, first: list[int]) -> None:
        self._engine, self._first = engine, first
        self.description, self.sync, self.fingerprints = engine.description, engine.sync, engine.fingerprints

    def generate(self, prompts: list[list[int]], **given: Any) -> Samples:
        return self._engine.generate([self._first + prompt for prompt in prompts], **given)


def probed(engine: RolloutEngine, lm: PreTrainedModel, tokenizer: Any, prompts: list[list[int]]) -> Probe:
    """On the engine's weights as they are, as if the proof had found nothing."""
    return probe(engine, Policy(lm), rollout(), tokenizer, prompts, max_tokens=MAX_TOKENS, proof=NOTHING_FOUND)


def test_other_weights_and_other_prompts_are_unexplained(
    lm: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, prompts: list[list[int]]
) -> None:
    other = TransformersEngine(rollout(), other_weights(lm), [EOS_ID])
    assert probed(other, lm, tokenizer, prompts).pattern == "unexplained"
    templated = OtherPrompt(TransformersEngine(rollout(), lm, [EOS_ID]), encode(tokenizer, "7+"))
    assert probed(templated, lm, tokenizer, prompts).pattern == "unexplained"  # pyright: ignore[reportArgumentType]


def test_a_tokenizer_that_joins_what_was_sampled_apart_is_named(lm: PreTrainedModel, prompts: list[list[int]]) -> None:
    joining = load_tokenizer(WARM_START)
    joining.add_tokens([f"{tens}{ones}" for tens in range(10) for ones in range(10)])
    other = TransformersEngine(rollout(), other_weights(lm), [EOS_ID])
    measured = probed(other, lm, joining, prompts)
    assert measured.pattern == "tokenizer"
    assert f"only {measured.round_trip:.0%} of the responses" in measured.sentence
    agreeing = probed(TransformersEngine(rollout(), lm, [EOS_ID]), lm, joining, prompts)
    assert agreeing.pattern == "precision"  # nothing to explain: responses are judged, and trained on, as sampled


def test_nan_is_no_pattern_that_reassures(
    lm: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, prompts: list[list[int]]
) -> None:
    class Broken(OtherPrompt):
        def generate(self, prompts: list[list[int]], **given: Any) -> Samples:
            samples = super().generate(prompts, **given)
            return replace(samples, log_probs=[[math.nan] * len(row) for row in samples.log_probs])

    broken: Any = Broken(TransformersEngine(rollout(), lm, [EOS_ID]), [])
    assert probed(broken, lm, tokenizer, prompts).pattern == "unexplained"


# --- the numbers ---


def test_the_numbers_are_those_of_a_loop_over_the_tokens(
    lm: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, prompts: list[list[int]]
) -> None:
    config = rollout(dtype="bfloat16", temperature=0.8)
    engine = TransformersEngine(config, lm, [EOS_ID])
    measured = probe(engine, Policy(lm), config, tokenizer, prompts, max_tokens=MAX_TOKENS, proof=NOTHING_FOUND)
    sampled = engine.generate(prompts, n=1, max_tokens=MAX_TOKENS, sampling=Sampling(temperature=0.8), seed=0)
    differences = []
    for prompt, response, log_probs in zip(prompts, sampled.response_ids, sampled.log_probs, strict=True):
        with torch.no_grad():
            logits = lm(torch.tensor([prompt + response])).logits[0].double() / 0.8
        for place, (token, log_prob) in enumerate(zip(response, log_probs, strict=True), start=len(prompt) - 1):
            differences.append(float(logits[place].log_softmax(-1)[token]) - log_prob)
    n = len(differences)
    assert measured.tokens == n
    assert measured.abs_log_ratio == pytest.approx(sum(map(abs, differences)) / n, rel=1e-3)
    assert measured.k3 == pytest.approx(sum(math.exp(d) - 1 - d for d in differences) / n, rel=1e-2)
    assert measured.k3 > 1e-7


# --- in a run ---


def short(**changes: Any) -> TrainConfig:
    return tiny_config(WARM_START, steps=1, rollout=rollout(**changes), eval_prompts=16, tensorboard=False)


def test_the_probe_is_printed_and_lands_in_the_manifest(local_runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = train(short(stale_lm_head=True))
    written = json.loads((run / "manifest.json").read_text())["probe"]
    assert written == asdict(Probe(**written))
    assert (written["pattern"], written["left_behind"]) == ("stale tensor", ["lm_head.weight"])
    assert written["tokens"] > 16
    printed = capsys.readouterr().out
    assert f"probe: mean |Δ| {written['abs_log_ratio']:.1e}, k3 {written['k3']:.1e}, stale tensor: " in printed
    assert "WARNING: stale_lm_head is on" in printed


def test_the_same_fault_without_the_switch_stops_the_run(local_runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def faulty(config: RolloutConfig, *rest: Any) -> RolloutEngine:
        return start_engine(replace(config, stale_lm_head=True), *rest)

    monkeypatch.setattr(session, "start_engine", faulty)
    with pytest.raises(UsageError, match=r"the engine did not take all .* it keeps the old lm_head\.weight"):
        train(short())
    assert not (local_runs / "tiny" / "metrics.jsonl").exists()
