"""The one-off shift, the padding, the tokenizer, what is kept for the backward pass, and what an engine is sent."""

from pathlib import Path

import pytest
import torch
from allocations import peak
from tiny import CPU, save_tiny_model

from rlcorr.train.config.learning import Precision
from rlcorr.train.inputs.tokenizer import EOS_ID, decode, encode, load_tokenizer
from rlcorr.train.learner.policy import Policy, Scores, engine_weights, load_lm
from rlcorr.train.learner.ranks import decoder_layers
from rlcorr.train.rollout.engine import Samples, to_batch

PROMPTS = [[1, 5, 6], [1, 7], [1, 4, 8, 9, 10]]
RESPONSES = [[4, EOS_ID], [9, 8, 7, 6], [5]]


@pytest.fixture(scope="module")
def policy(tiny_model: Path) -> Policy:
    return Policy(load_lm(tiny_model, CPU))


@torch.no_grad()
def alone(policy: Policy, prompt: list[int], response: list[int], temperature: float) -> list[float]:
    """Log-probs of a response, one token at a time: no padding, no batch, the last position predicts the next token."""
    log_probs = []
    for t, token in enumerate(response):
        logits = policy.lm(torch.tensor([prompt + response[:t]])).logits[0, -1] / temperature
        log_probs.append(float(logits.double().log_softmax(-1)[token]))
    return log_probs


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_scores_are_those_of_each_sequence_alone(policy: Policy, temperature: float) -> None:
    batch = to_batch(PROMPTS, Samples(RESPONSES, [[0.0] * len(r) for r in RESPONSES]), CPU)
    scores = policy(batch, temperature).log_probs
    for row, (prompt, response) in enumerate(zip(PROMPTS, RESPONSES, strict=True)):
        got = scores[row][batch.response_mask[row]].tolist()
        assert got == pytest.approx(alone(policy, prompt, response, temperature), abs=2e-5)


def test_entropy_is_that_of_the_next_token_distribution(policy: Policy) -> None:
    batch = to_batch([[1, 5, 6]], Samples([[4]], [[0.0]]), CPU)
    with torch.no_grad():
        p = policy.lm(torch.tensor([[1, 5, 6]])).logits[0, -1].double().softmax(-1)
    expected = -sum(float(x) * float(x.log()) for x in p)
    assert float(policy(batch, 1.0).entropy[0, 0].detach()) == pytest.approx(expected, abs=1e-5)


def test_the_critic_starts_at_zero(policy: Policy) -> None:
    batch = to_batch(PROMPTS, Samples(RESPONSES, [[0.0] * len(r) for r in RESPONSES]), CPU)
    values = policy(batch, 1.0).values
    assert values is not None
    assert not values.any()


def test_a_tied_head_is_sent_to_the_engine(policy: Policy) -> None:
    sent = dict(engine_weights(policy.state_dict(), policy.lm))
    assert torch.equal(sent["lm_head.weight"], sent["model.embed_tokens.weight"])
    assert set(sent) == {*policy.lm.state_dict(), "lm_head.weight"}


def test_text_survives_a_saved_tokenizer(tiny_model: Path) -> None:
    tokenizer = load_tokenizer(tiny_model)
    text = "12+345=,*/-()"
    ids = encode(tokenizer, text)
    assert len(ids) == len(text) + 1  # one token per character, and <bos>
    assert decode(tokenizer, [*ids[1:], EOS_ID, 7]) == text


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_checkpointed_layers_change_no_gradient_and_keep_less(precision: Precision, tmp_path: Path) -> None:
    """Eight layers of width 64 keep over 20 tensors as wide as the layer each; checkpointed, one each, and one layer's
    at a time in the backward pass."""
    model = save_tiny_model(tmp_path, layers=8)
    rows = torch.randint(3, 20, (8, 60)).tolist()
    batch = to_batch([[1, 5, 6]] * 8, Samples(rows, [[0.0] * 60] * 8), CPU)
    gradients, peaks = [], []
    for checkpointed in (False, True):
        policy = Policy(load_lm(model, CPU), "separate", precision)
        if checkpointed:
            policy.checkpoint_layers()
        scores: list[Scores] = []
        peaks.append(peak(lambda p=policy, s=scores: s.append(p(batch, 1.0)) or s))
        (scores[0].log_probs.sum() + scores[0].values.sum()).backward()  # pyright: ignore[reportOptionalMemberAccess]
        gradients.append(torch.cat([p.grad.flatten() for p in policy.parameters() if p.grad is not None]))
    assert torch.equal(*gradients)
    assert peaks[1] < peaks[0] / 3


def test_checkpointing_switches_no_dropout_on(tmp_path: Path) -> None:
    policy = Policy(load_lm(save_tiny_model(tmp_path), CPU))
    policy.checkpoint_layers()
    assert policy.lm.is_gradient_checkpointing
    assert not any(module.training for layer in decoder_layers(policy) for module in list(layer.modules())[1:])
