"""Weights rounded at each sync: expected numbers by hand, from the definition of each format."""

import pytest
import torch
from engines import mismatch
from tiny import CPU

from rlcorr.errors import UsageError
from rlcorr.train.config.rollout import RolloutConfig, Sampling
from rlcorr.train.inputs.tokenizer import EOS_ID
from rlcorr.train.learner.policy import Policy, engine_weights, load_lm
from rlcorr.train.rollout.transformers_engine import TransformersEngine
from rlcorr.train.rollout.weight_formats import rounded

MATRIX = "model.layers.0.self_attn.q_proj.weight"


def test_each_output_channel_is_rounded_by_its_own_largest_weight() -> None:
    """int8: −0.49·127 = −62.23 → −62, 0.3·127 = 38.1 → 38. int4: −0.49·7 = −3.43 → −3, 0.3·7 = 2.1 → 2.

    fp8 e4m3 has 3 bits behind the leading one: −0.49·448 = −219.52 lies between −208 and −224, and 0.3·448 = 134.4
    between 128 and 144, steps of 16 both. The second row is the first times 10, so its numbers are.
    """
    row = torch.tensor([1.0, -0.49, 0.3])
    expected = {"int8": [1, -62 / 127, 38 / 127], "int4": [1, -3 / 7, 2 / 7], "fp8_e4m3": [1, -224 / 448, 128 / 448]}
    for name, numbers in expected.items():
        got = rounded(MATRIX, torch.stack([row, 10 * row]), name)  # pyright: ignore[reportArgumentType]
        assert got.tolist() == [pytest.approx(numbers), pytest.approx([10 * n for n in numbers])], name


def test_experts_are_rounded_one_by_one_and_a_channel_of_zeros_stays() -> None:
    stack = torch.tensor([[[1.0, 0.3]], [[100.0, 30.0]], [[0.0, 0.0]]])
    got = rounded("model.layers.0.mlp.experts.down_proj", stack, "int4")
    assert got.tolist() == [[pytest.approx([1, 2 / 7])], [pytest.approx([100, 200 / 7])], [[0, 0]]]


def test_what_is_no_matrix_of_a_layer_stays_as_it_is() -> None:
    for name, tensor in (
        (MATRIX, torch.rand(4)),
        ("model.norm.weight", torch.rand(4)),
        ("model.embed_tokens.weight", torch.rand(4, 4)),
        ("lm_head.weight", torch.rand(4, 4)),
    ):
        assert rounded(name, tensor, "int4") is tensor, name
    matrix = torch.rand(4, 4)
    assert rounded(MATRIX, matrix, "none") is matrix


def test_an_engine_rounds_at_each_sync(tiny_model) -> None:
    """The coarser the format, the larger the gap; the trainer's own weights stay as they are."""
    lm = load_lm(tiny_model, CPU)
    policy = Policy(lm)
    before = {name: tensor.clone() for name, tensor in lm.state_dict().items()}
    gaps = {}
    for name in ("none", "int8", "fp8_e4m3", "int4"):
        engine = TransformersEngine(RolloutConfig(engine="transformers", dtype="float32", weights=name), lm, [EOS_ID])
        engine.sync(engine_weights(policy.state_dict(), lm))
        gaps[name] = mismatch(engine, policy, [[1, 5, 6], [1, 7], [1, 4, 8, 9]] * 8)
        assert engine.description.get("weights", "none") == name
    assert gaps["none"] < 1e-7 < gaps["int8"] < gaps["fp8_e4m3"] < gaps["int4"], gaps
    assert all(torch.equal(before[name], tensor) for name, tensor in lm.state_dict().items())


def test_two_ways_to_round_exclude_each_other() -> None:
    with pytest.raises(UsageError, match=r"leave out rollout\.weights, or quantization"):
        RolloutConfig(weights="int8", quantization="fp8")
    with pytest.raises(UsageError, match="unknown weights 'int3'"):
        RolloutConfig(weights="int3")  # pyright: ignore[reportArgumentType]


def test_an_update_that_the_engine_s_dtype_hides_does_not_reach_its_int8_weights(tiny_model) -> None:
    """1 ± 2⁻¹¹ times a number of bfloat16, whose steps are 2⁻⁷ to 2⁻⁸ of it, is rounded back to that number. int8 has
    127 steps up to the largest weight, so from float32 it would round one entry in a few hundred another way."""
    lm = load_lm(tiny_model, CPU)
    lm.bfloat16().float()
    settings = RolloutConfig(engine="transformers", dtype="bfloat16", weights="int8")
    engine = TransformersEngine(settings, lm, [EOS_ID])
    generator = torch.Generator().manual_seed(0)

    def next_log_probs(size: float) -> torch.Tensor:
        signs = {n: torch.randint(2, t.shape, generator=generator) * 2 - 1 for n, t in lm.state_dict().items()}
        engine.sync([(n, t * (1 + size * signs[n])) for n, t in engine_weights(Policy(lm).state_dict(), lm)])
        return engine.next_log_probs([[1, 5, 6], [1, 7]], Sampling()).log_probs

    before = next_log_probs(0.0)
    assert torch.equal(before, next_log_probs(2**-11))
    assert not torch.equal(before, next_log_probs(2**-6))
