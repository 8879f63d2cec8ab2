"""Answers that share their prompt: the same scores and gradients as each answer alone, in rows that fit the budget."""

from dataclasses import replace

import oracle
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from learners import VOCABULARY, one_update, rows_alone, sampled_batch, scored_batch, small_policy, train_config
from tiny import CPU
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel, Qwen2Config, Qwen2ForCausalLM

from rlcorr import CorrectionConfig
from rlcorr.train.learner import policy as policy_module
from rlcorr.train.learner.microbatch import plan_microbatches
from rlcorr.train.learner.policy import Policy
from rlcorr.train.learner.shared_prompts import LONGEST_ROW, can_share, group_answers, shared_rows, worth_sharing
from rlcorr.train.pretrain import NEW_MODELS
from rlcorr.train.rollout.engine import Samples, to_batch
from rlcorr.types import TokenBatch

PROMPTS = [[5, 6], [5, 6], [7, 8, 9], [5, 6], [4], [4], [4]]
RESPONSES = [[3, 4, 5], [6], [7, 8], [9, 10], [3], [], [6, 7]]


def batch_of(prompts: list[list[int]], responses: list[list[int]]) -> TokenBatch:
    return to_batch(prompts, Samples(responses, [[0.0] * len(response) for response in responses]), CPU)


def small_llama() -> PreTrainedModel:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=16, intermediate_size=32, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=32, initializer_range=0.5,
    )  # fmt: skip
    return LlamaForCausalLM(config)


def test_the_layout_by_hand() -> None:
    """Neighbours with one prompt share a row, so rows 0 and 1, row 2, row 3, and rows 4 to 6. A state predicts the next
    token: the first token of an answer is predicted from the prompt's last token."""
    shared = shared_rows(batch_of(PROMPTS, RESPONSES))
    assert shared is not None
    assert shared.ids.tolist() == [
        [5, 6, 3, 4, 5, 6],
        [7, 8, 9, 7, 8, 0],
        [5, 6, 9, 10, 0, 0],
        [4, 3, 6, 7, 0, 0],
    ]
    assert shared.positions[0].tolist() == [0, 1, 2, 3, 4, 2]
    assert shared.positions[3, :4].tolist() == [0, 1, 1, 2]
    assert shared.attends[0, 0].int().tolist() == [
        [1, 0, 0, 0, 0, 0],
        [1, 1, 0, 0, 0, 0],
        [1, 1, 1, 0, 0, 0],
        [1, 1, 1, 1, 0, 0],
        [1, 1, 1, 1, 1, 0],
        [1, 1, 0, 0, 0, 1],  # the second answer does not see the first
    ]
    assert shared.before[0].tolist() == [1, 2, 3]
    assert shared.before[1, :1].tolist() == [1]
    assert shared.before[2, :2].tolist() == [6 + 2, 6 + 3]
    assert shared.before[6, :2].tolist() == [18 + 0, 18 + 2]
    assert shared_rows(batch_of(PROMPTS[:3:2], RESPONSES[:3:2])) is None


@pytest.mark.parametrize("model", ["qwen2", "llama", "qwen3_moe"])
@torch.no_grad()
def test_scores_are_those_of_each_answer_alone(model: str) -> None:
    lm = small_policy().lm if model == "qwen2" else small_llama() if model == "llama" else NEW_MODELS[model](VOCABULARY)
    policy, batch = Policy(lm, False), batch_of(PROMPTS, RESPONSES)
    assert can_share(lm.config)
    scores = policy(batch, 0.7, share_prompts=True)
    for row, (log_probs, entropies) in enumerate(rows_alone(policy, batch, 0.7)):
        real = batch.response_mask[row]
        torch.testing.assert_close(scores.log_probs[row][real], log_probs, rtol=1e-4, atol=2e-5)
        torch.testing.assert_close(scores.entropy[row][real], entropies, rtol=1e-4, atol=2e-5)


def test_values_and_gradients_are_the_same() -> None:
    gradients = []
    for share in (False, True):
        policy = small_policy(critic=True)
        batch = batch_of(PROMPTS, RESPONSES)
        scores = policy(batch, 1.0, share_prompts=share)
        weights = torch.linspace(-1, 2, batch.response_mask.numel()).view_as(scores.log_probs) * batch.response_mask
        ((scores.log_probs + scores.values) * weights).sum().backward()
        gradients.append(torch.cat([p.grad.flatten() for p in policy.parameters() if p.grad is not None]))
    torch.testing.assert_close(*gradients, rtol=1e-4, atol=1e-5)


def test_an_update_with_common_prompts_has_the_same_gradient(monkeypatch: pytest.MonkeyPatch) -> None:
    policy = small_policy()
    batch = scored_batch(policy)
    first = batch.rows(torch.tensor([1, 1, 1, 4, 4, 4]))
    batch = batch.replace(prompt_ids=first.prompt_ids, prompt_mask=first.prompt_mask)
    assert worth_sharing(batch) is not None
    gradients = []
    for share in (False, True):
        config = train_config(monkeypatch, CorrectionConfig(rollout_is="token", rollout_is_threshold=2.0))
        config = replace(config, optim=replace(config.optim, microbatch_tokens=16))
        monkeypatch.setattr(policy_module, "can_share", lambda _, share=share: share)
        gradients.append(one_update(small_policy(), config, batch)[0])
    assert gradients[0].any()
    torch.testing.assert_close(*gradients, rtol=1e-4, atol=1e-5)


LENGTHS = st.lists(st.tuples(st.integers(1, 12), st.integers(0, 12)), min_size=1, max_size=12)


@oracle.examples(150)
@given(LENGTHS, st.integers(1, 5), st.sampled_from([1, 15, 40, 100]), st.integers(1, 3))
def test_the_plan_of_any_batch(kinds: list[tuple[int, int]], samples: int, budget: int, size: int) -> None:
    """Several answers to each prompt: every row once, and within the budget, padding to the longest row included."""
    lengths = [(prompt, (response + i) % 13) for prompt, response in kinds for i in range(samples)]
    prompts = [number for number in range(len(kinds)) for _ in range(samples)]
    shares = plan_microbatches(range(len(lengths)), lengths, budget, size, prompts)
    groups = [group for share in shares for group in share if group]
    assert sorted(row for group in groups for row in group) == list(range(len(lengths)))
    for group in groups:
        rows = [
            lengths[row[0]][0] + sum(lengths[one][1] for one in row)
            for row in group_answers(group, prompts, lengths, budget)
        ]
        assert len(group) == 1 or len(rows) * max(rows) <= budget


def test_a_long_row_is_not_shared() -> None:
    """Two answers of 200 tokens and a prompt of 100 fill 500 of 512 tokens."""
    lengths = [(100, 200)] * 5
    assert LONGEST_ROW == 512
    assert group_answers(range(5), [0] * 5, lengths) == [[0, 1], [2, 3], [4]]


def test_common_prompts_are_used_where_they_save_a_quarter() -> None:
    """Two answers to a prompt of three tokens: 3 of 12 tokens with answers of three, 3 of 14 with answers of four."""
    assert worth_sharing(batch_of([[3, 4, 5]] * 2, [[3, 4, 5], [6, 7, 8]])) == [0, 0]
    assert worth_sharing(batch_of([[3, 4, 5]] * 2, [[3, 4, 5, 6], [6, 7, 8, 9]])) is None
    assert worth_sharing(sampled_batch()) is None


def test_models_that_cannot_share() -> None:
    assert can_share(small_policy().lm.config)
    eager = small_policy().lm.config
    eager._attn_implementation = "eager"
    window = Qwen2Config(
        use_sliding_window=True, sliding_window=8, num_hidden_layers=2, num_attention_heads=2, vocab_size=9,
        hidden_size=16,
    )  # fmt: skip
    assert not can_share(eager)
    assert not can_share(Qwen2ForCausalLM(window).config)
