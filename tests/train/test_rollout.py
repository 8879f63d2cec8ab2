"""The transformers engine: its log-probs, its weights, and the proof of a sync."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from engines import Forgetful, mismatch
from tiny import CPU
from torch import Tensor

from rlcorr.errors import UsageError
from rlcorr.train.config.rollout import GREEDY, RolloutConfig, Sampling, WeightFormat
from rlcorr.train.inputs.tokenizer import EOS_ID
from rlcorr.train.learner.policy import Policy, engine_weights, load_lm
from rlcorr.train.learner.ranks import ALONE
from rlcorr.train.rollout.engine import to_batch
from rlcorr.train.rollout.start import resolve_engine, start_engine
from rlcorr.train.rollout.sync_proof import fingerprint, opposite, prove_sync, sync_proof
from rlcorr.train.rollout.transformers_engine import TransformersEngine
from rlcorr.train.rollout.weight_formats import rounded

FLOAT32 = RolloutConfig(engine="transformers", dtype="float32")
PROMPTS = [[1, 5, 6], [1, 7], [1, 4, 8, 9, 10]]


def engine_and_policy(tiny_model: Path, config: RolloutConfig = FLOAT32) -> tuple[TransformersEngine, Policy]:
    engine = start_engine(config, tiny_model, ALONE, [EOS_ID], Path("unused"))
    assert isinstance(engine, TransformersEngine)
    return engine, Policy(load_lm(tiny_model, CPU))


@torch.no_grad()
@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_log_probs_are_of_the_sampled_distribution(tiny_model: Path, temperature: float) -> None:
    engine, policy = engine_and_policy(tiny_model)
    sampled = engine.generate(PROMPTS, n=3, max_tokens=5, sampling=Sampling(temperature))
    batch = to_batch([p for p in PROMPTS for _ in range(3)], sampled, CPU)
    trained = policy(batch, temperature).log_probs[batch.response_mask]
    torch.testing.assert_close(batch.rollout_log_probs[batch.response_mask], trained, rtol=0, atol=1e-4)


def test_greedy_takes_the_likeliest_token(tiny_model: Path) -> None:
    engine, policy = engine_and_policy(tiny_model)
    first = engine.generate(PROMPTS, n=1, max_tokens=1, sampling=GREEDY).response_ids
    with torch.no_grad():
        expected = [[int(policy.lm(torch.tensor([p])).logits[0, -1].argmax())] for p in PROMPTS]
    assert first == expected


def test_the_proof_of_a_sync_passes_and_leaves_the_engine_with_the_policys_weights(tiny_model: Path) -> None:
    engine, policy = engine_and_policy(tiny_model)
    with torch.no_grad():
        for parameter in policy.lm.parameters():
            parameter.add_(0.3)
    assert mismatch(engine, policy, PROMPTS) > 1e-3
    before = {name: tensor.clone() for name, tensor in policy.lm.state_dict().items()}
    proof = prove_sync(engine, policy, FLOAT32)
    assert (proof.k3 < 1e-7, proof.left_behind) == (True, [])
    assert all(torch.equal(before[name], tensor) for name, tensor in policy.lm.state_dict().items())
    assert mismatch(engine, policy, PROMPTS) < 1e-7


@pytest.mark.parametrize("changes", [{}, {"dtype": "float16", "weights": "int4"}], ids=str)
def test_the_proof_names_every_tensor_left_behind(tiny_model: Path, changes: dict[str, Any]) -> None:
    """Each alone, whatever the engine's number format is; a tied head goes with its embedding."""
    engine, policy = engine_and_policy(tiny_model, replace(FLOAT32, **changes))
    tied = ["model.embed_tokens.weight", "lm_head.weight"]
    for name in policy.lm.state_dict():
        if name != "model.embed_tokens.weight":  # the head, which comes later, replaces it
            left_behind = sync_proof(Forgetful(engine, policy, {name}), policy).left_behind
            assert left_behind == (tied if name == "lm_head.weight" else [name])


def test_a_run_ends_with_the_name_of_the_tensor(tiny_model: Path) -> None:
    engine, policy = engine_and_policy(tiny_model)
    names = {name for name in policy.lm.state_dict() if "norm" in name}
    with pytest.raises(UsageError, match=r"keeps the old .*input_layernorm\.weight, .* and 2 more\.$"):
        prove_sync(Forgetful(engine, policy, names), policy, FLOAT32)


def test_what_an_engine_cannot_do_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """On an H100, vllm 0.25.1 ended in an assertion without a message for e5m2."""
    with pytest.raises(UsageError, match="needs the vllm engine"):
        resolve_engine(RolloutConfig(engine="transformers", kv_cache_dtype="fp8"))
    with pytest.raises(UsageError, match=r"leave out rollout\.weights, or quantization"):
        RolloutConfig(weights="int8", quantization="fp8")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    with pytest.raises(UsageError, match="'fp8_e5m2' needs vLLM's CPU engine"):
        resolve_engine(RolloutConfig(engine="vllm", kv_cache_dtype="fp8_e5m2"))


# --- weights read back: what changes, in which number format, and which slice of a tensor is old ---


Q, K = 5, 3


def drawn(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0))


def old_slices(before: Tensor, after: Tensor) -> list[int]:
    same = torch.isclose(fingerprint(before), fingerprint(after), rtol=0.01, atol=0).all(-1)
    return same.nonzero().flatten().tolist()


@pytest.mark.parametrize("weight_format", ["none", "fp8_e4m3", "int8", "int4"])
def test_every_element_changes_in_every_format(weight_format: WeightFormat) -> None:
    """By the largest of them at least: a twentieth is far more than a format's step there. Zeros become ones."""
    for weight in (drawn(16, 32), 1e-3 * drawn(16, 32), torch.zeros(16, 32), torch.ones(16, 32)):
        for dtype in (torch.float32, torch.bfloat16, torch.float16, torch.float8_e4m3fn):
            stored, changed = (rounded("q", x, weight_format).to(dtype).float() for x in (weight, opposite(weight)))
            largest = float(weight.abs().max()) or 1.0
            assert bool(((stored - changed).abs() >= 0.95 * largest).all()), dtype
            assert float(opposite(weight).abs().max()) == largest, dtype
    assert torch.equal(opposite(torch.arange(3)), torch.arange(3))  # ids stay


@pytest.mark.parametrize("transposed", [False, True])
def test_old_rows_of_joined_tensors_show_under_one_scale(transposed: bool) -> None:
    """vLLM's fp8 has one scale for all of qkv_proj, from its largest magnitude, which stays: so old rows stay, too."""

    def in_fp8(weight: Tensor) -> Tensor:
        codes = (weight / weight.abs().max() * 448).to(torch.float8_e4m3fn)
        return codes[None].mT if transposed else codes

    q, k = drawn(Q, 8), 3 * drawn(K, 8)
    before = in_fp8(torch.cat([opposite(q), opposite(k)]))
    assert old_slices(before, in_fp8(torch.cat([q, k]))) == []
    first = 8 if transposed else 0  # rows of the transposed matrix come before its columns
    assert old_slices(before, in_fp8(torch.cat([opposite(q), k]))) == [first + row for row in range(Q)]
    assert old_slices(before, in_fp8(torch.cat([q, opposite(k)]))) == [first + Q + row for row in range(K)]


def test_half_of_one_expert_and_each_element_of_a_vector_show() -> None:
    """Rows of experts 0, 1, 2 come first; the gate of an expert is the first half of its rows."""
    experts, bias = drawn(3, 8, 6), torch.zeros(6)
    half_old = opposite(experts).clone()
    half_old[1, :4] = experts[1, :4]
    assert old_slices(experts, half_old) == [8, 9, 10, 11]
    assert old_slices(bias, torch.cat([bias[:2], opposite(bias)[2:]])) == [0, 1]


# --- rounding of weights ---


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
