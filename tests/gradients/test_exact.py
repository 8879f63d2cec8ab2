"""Exact sketches against the toy, whose gradients are known without any sketch, and against loops in numpy."""

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from toy_sketches import exact_sketch, node_scores

from rlcorr.config import Aggregation, CorrectionConfig, LossConfig
from rlcorr.errors import UsageError
from rlcorr.gradients import toy
from rlcorr.gradients.answers import AnswerTree, answers_of, paths_of
from rlcorr.gradients.bootstrap import Interval
from rlcorr.gradients.contributions import contributions
from rlcorr.gradients.report import compare, report
from rlcorr.gradients.sketch import ExactSketch
from rlcorr.presets import preset
from rlcorr.rules import RejectionRule

NAMES = ("disabled", "decoupled_token_is", "decoupled_seq_is", "decoupled_geo_rs", "decoupled_token_icepop")
SIZES = (16, 256, 4096)


@pytest.mark.parametrize("seed", range(3))
def test_all_answers_give_the_exact_numbers(seed: int) -> None:
    """In all directions of the table, so that nothing is projected. An answer counts with its probability, and a
    token-mean is divided by the expected length, as in the toy."""
    of = toy.small_world(0.3 + 0.05 * seed, vocabulary=3, length=3, seed=100 * seed)
    sketch = exact_sketch([of], everything([of]))
    assert sketch.answers.coverage == pytest.approx({"old": 1, "rollout": 1}, abs=1e-5)
    for name in NAMES:
        truth = toy.gradient_truth(of.where, of.policies, of.advantages, preset(name))
        got = report(sketch.answers.batch, sketch, preset(name), batch_sizes=SIZES, replicates=1)
        assert got.relative_bias.value == pytest.approx(truth.relative_bias, rel=1e-3, abs=1e-4)
        assert got.reference_length.value == pytest.approx(float(truth.reference.norm()), rel=1e-4)
        assert got.scale.value == pytest.approx(truth.scale, rel=1e-3, abs=1e-4)
        assert got.variance.value == pytest.approx(truth.variance, rel=1e-3)
        for size, share in zip(got.batch_sizes, got.progress, strict=True):
            assert share.value == pytest.approx(truth.progress(size), rel=3e-3, abs=1e-4), (name, size)


def everything(worlds: list[toy.Toy]) -> torch.Tensor:
    """One direction per parameter."""
    return torch.eye(max(of.policies.theta.numel() for of in worlds), dtype=torch.float64)


# --- several prompts, answer by answer ---

Weights = Callable[[np.ndarray], np.ndarray]
"""Log-ratios of an answer's tokens → what each token is trained with."""
CASES: dict[str, tuple[CorrectionConfig, Weights]] = {
    "nothing": (CorrectionConfig(), np.ones_like),
    "token": (
        CorrectionConfig(rollout_is="token", rollout_is_threshold=1.2), lambda d: np.minimum(np.exp(d), 1.2)
    ),
    "sequence": (
        CorrectionConfig(rollout_is="sequence", rollout_is_threshold=math.inf),
        lambda d: np.full_like(d, math.exp(d.sum())),
    ),
    "rule": (
        CorrectionConfig(rollout_rs=(RejectionRule.named("seq_sum_k1", lower=0.7, upper=1.4),)),
        lambda d: np.full_like(d, 0.7 <= math.exp(d.sum()) <= 1.4),
    ),
}  # fmt: skip


def by_loops(worlds: list[toy.Toy], weights: Weights, mode: Aggregation) -> dict[str, float]:
    """The numbers of a report. A prompt adds the expectation over its answers; all prompts count alike."""
    width = everything(worlds).shape[0]
    u, reference, n, answers = np.zeros(width), np.zeros(width), 0.0, []
    for of in worlds:
        rollout, old = (toy.log_probs(of.where, x).numpy() for x in (of.policies.rollout, of.policies.old))
        scores = node_scores(of).numpy()
        for row, real in enumerate(of.where.mask.numpy()):
            q, p = math.exp(rollout[row].sum()), math.exp(old[row].sum())
            d = np.zeros(real.sum()) if q == 0 else (old - rollout)[row][real]
            s = float(of.advantages[row]) * np.pad(scores[row][real], ((0, 0), (0, width - scores.shape[2])))
            size = int(real.sum()) if mode == "token-mean" else 1
            of_answer = (weights(d)[:, None] * s).sum(0)
            u, n, reference = u + q * of_answer, n + q * size, reference + p * s.sum(0)
            answers.append((q, of_answer, size))
    g, reference = u / n, reference / n
    squares = sum(q * ((of_answer - size * g) ** 2).sum() for q, of_answer, size in answers)
    variance, unit2, inner = squares * len(worlds) / n**2, reference @ reference, g @ reference
    numbers = {"variance": variance, "bias": np.linalg.norm(g - reference), "scale": inner / unit2}
    numbers |= {"cosine": inner / math.sqrt(unit2 * (g @ g)), "reference_length": math.sqrt(unit2)}
    numbers |= {str(size): max(inner, 0) ** 2 / unit2 / (g @ g + variance / size) for size in SIZES}
    return {name: float(number) for name, number in numbers.items()}


def agrees(worlds: list[toy.Toy], name: str, mode: Aggregation) -> None:
    correction, weights = CASES[name]
    sketch = exact_sketch(worlds, everything(worlds))
    got = report(
        sketch.answers.batch, sketch, correction, LossConfig(loss_agg_mode=mode), batch_sizes=SIZES, replicates=1
    )
    of_sizes = {str(size): share for size, share in zip(SIZES, got.progress, strict=True)}
    for key, expected in by_loops(worlds, weights, mode).items():
        interval = of_sizes.get(key) or getattr(got, key)
        assert interval.value == pytest.approx(expected, rel=2e-3, abs=1e-4), key


UNEQUAL = [
    toy.small_world(0.4, vocabulary=3, length=3, seed=1),
    toy.small_world(0.7, vocabulary=4, length=2, seed=4),
    toy.small_world(0.2, vocabulary=2, length=4, seed=7),
    toy.small_world(0.5, vocabulary=3, length=1, seed=10),
]


@pytest.mark.parametrize("mode", ["token-mean", "seq-mean-token-sum"])
@pytest.mark.parametrize("name", CASES)
def test_prompts_of_unequal_size(name: str, mode: Aggregation) -> None:
    agrees(UNEQUAL, name, mode)


def cut_off(of: toy.Toy, least: float) -> toy.Toy:
    """The engine never draws tokens that it gives less than this, as with top-p; the trainer does."""
    table = of.policies.rollout.log_softmax(-1)
    left = torch.where(table.exp() < least, -torch.inf, table)
    return replace(of, policies=replace(of.policies, rollout=left.log_softmax(-1)))


@pytest.mark.parametrize("name", CASES)
def test_answers_that_the_engine_never_draws(name: str) -> None:
    """They add to the on-policy gradient alone: even exact sequence weights have a bias then."""
    worlds = [cut_off(of, 0.25) for of in UNEQUAL[:2]]
    sketch = exact_sketch(worlds, everything(worlds))
    assert (sketch.answers.sampled == 0).sum() > 3
    assert sketch.answers.coverage == pytest.approx({"old": 1, "rollout": 1}, abs=1e-5)
    mode: Aggregation = "token-mean"
    agrees(worlds, name, mode)
    weights = CASES["sequence"][1]
    assert by_loops(worlds, weights, mode)["bias"] > 0.01
    assert by_loops(UNEQUAL[:2], weights, mode)["bias"] < 1e-12


def test_rejecting_everything_is_no_progress() -> None:
    """Nothing is left of the gradient: its bias is the whole on-policy one. With kept tokens alone in the denominator
    there is none, which must not divide by 0."""
    rule = RejectionRule.named("token_k1", lower=1e6, upper=1e7)
    sketch = exact_sketch(UNEQUAL, everything(UNEQUAL))
    for denominator in ("fixed", "kept"):
        nothing = CorrectionConfig(rollout_rs=(rule,), denominator=denominator)
        got = report(sketch.answers.batch, sketch, nothing)
        assert [(share.value, share.low, share.high) for share in got.progress] == [(0, 0, 0), (0, 0, 0)]
        assert (got.relative_bias.value, got.length.value, got.scale.value) == pytest.approx((1, 0, 0), abs=1e-5)
        ranking = compare(sketch.answers.batch, sketch, [nothing, CorrectionConfig()])
        assert [choice.best for choice in ranking.choices] == [1, 1]


def test_the_intervals_are_over_the_prompts() -> None:
    """Where all prompts are alike, drawing other ones changes nothing; only the directions are left. Without a
    projection either, here by one direction alone, no interval is left."""
    alike = exact_sketch([UNEQUAL[0]] * 5, everything(UNEQUAL)[:, 3:4])
    got = report(alike.answers.batch, alike, CASES["token"][0])
    for interval in (got.reference_length, got.relative_bias, got.scale, *got.progress):
        assert interval.high - interval.low < 1e-5
    whole = replace(exact_sketch(UNEQUAL, everything(UNEQUAL)[:, 3:4]), task_prompts=len(UNEQUAL))  # the whole task
    assert report(whole.answers.batch, whole, CASES["token"][0]).reference_noise.high == 0
    unlike = exact_sketch(UNEQUAL, everything(UNEQUAL)[:, 3:4])
    got = report(unlike.answers.batch, unlike, CASES["token"][0])
    assert got.reference_length.high - got.reference_length.low > 0.05


def test_the_share_that_differences_between_prompts_give() -> None:
    """The variance of the mean of P gradients, Σ |g − ḡ|²/(P (P − 1)), over |ḡ|², from the toy's own gradients. Each
    answer counts as the sum of its tokens, so that nothing but P divides."""
    summed = LossConfig(loss_agg_mode="seq-mean-token-sum")
    worlds = [toy.small_world(0.3, vocabulary=3, length=2, seed=10 * number) for number in range(4)]
    truths = [toy.gradient_truth(of.where, of.policies, of.advantages, CorrectionConfig(), summed) for of in worlds]
    gradients = torch.stack([truth.reference.flatten() for truth in truths])
    mean = gradients.mean(0)
    share = float((gradients - mean).square().sum() / (4 * 3) / mean.square().sum())
    assert 0.1 < share < 0.9

    def noise_of(some: list[toy.Toy], replicates: int = 1) -> Interval:
        sketch = exact_sketch(some, everything(worlds))
        return report(sketch.answers.batch, sketch, CorrectionConfig(), summed, replicates=replicates).reference_noise

    assert noise_of(worlds).value == pytest.approx(share, rel=1e-4)
    assert noise_of(worlds[:1] * 5).value == pytest.approx(0, abs=1e-6)
    of_sixteen = replace(exact_sketch(worlds, everything(worlds)), task_prompts=16)
    got = report(of_sixteen.answers.batch, of_sixteen, CorrectionConfig(), summed, replicates=1)
    assert got.reference_noise.value == pytest.approx(share * 3 / 4, rel=1e-4)
    many = noise_of(worlds, replicates=200)
    assert 0 < many.low < share < many.high <= 1


# --- the tree ---


def two_prompts() -> AnswerTree:
    """Prompt 0: token 1 and then 2, or 3 alone. Prompt 1: token 4 alone. Probabilities under π_old, what the engine
    reports, and what it draws from; the rest of each is not in the tree."""
    old, reported, drawn = (torch.tensor(p).log() for p in ([0.5, 0.8, 0.3, 0.9], [0.4] * 4, [0.6, 0.5, 0.35, 1.0]))
    tokens, parents = torch.tensor([1, 3, 2, 4]), torch.tensor([-1, -1, 0, -1])
    old, drawn = old[[0, 2, 1, 3]], drawn[[0, 2, 1, 3]]
    return AnswerTree(torch.tensor([0, 0, 0, 1]), parents, tokens, old, reported, drawn)


def test_the_answers_of_a_tree() -> None:
    """In the order of their last nodes: 3 (node 1), 1 2 (nodes 0 and 2), and 4 (node 3)."""
    answers = answers_of(two_prompts())
    assert paths_of(two_prompts().parents).tolist() == [[1, -1], [0, 2], [3, -1]]
    assert answers.nodes.tolist() == [1, 0, 2, 3]
    assert answers.prompts.tolist() == [0, 0, 1]
    ids = answers.batch.tensors()["response_ids"]
    assert ids.tolist() == [[3, 0], [1, 2], [4, 0]]
    assert answers.trained.tolist() == pytest.approx([0.3, 0.5 * 0.8, 0.9])
    assert answers.sampled.tolist() == pytest.approx([0.35, 0.6 * 0.5, 1.0])
    assert answers.batch.rollout_log_probs[answers.batch.response_mask].exp().tolist() == pytest.approx([0.4] * 4)


def test_the_coverage() -> None:
    """π_old: (.3 + .4 + .9)/2 = .8; what the engine draws from: (.35 + .3 + 1)/2 = .825."""
    assert answers_of(two_prompts()).coverage == pytest.approx({"old": 0.8, "rollout": 0.825})


def test_raw_log_probs_weigh_by_what_is_drawn() -> None:
    """Ratios are taken of what is reported, frequencies of what is drawn: .35 · s_3 + .6 · .5 · (s_1 + s_2) + s_4, over
    the .35 + 2 · .3 + 1 expected tokens. Advantages are 1, scores one per node."""
    sketch = ExactSketch(two_prompts(), torch.ones(4), torch.eye(4))
    got = report(sketch.answers.batch, sketch, CorrectionConfig(), replicates=1)
    tokens = 0.35 + 2 * 0.3 + 1
    assert got.length.value == pytest.approx(math.hypot(0.35, 0.3, 0.3, 1) / tokens, rel=1e-5)
    assert got.reference_length.value == pytest.approx(math.hypot(0.3, 0.4, 0.4, 0.9) / tokens, rel=1e-5)


@pytest.mark.parametrize("name", ["disabled", "decoupled_token_is", "decoupled_token_icepop"])
def test_score_centering_subtracts_the_mean_score_at_every_position(name: str) -> None:
    """Σ q(answer) Σ_t A (w_t s_t − Σ_v q(v) w(v) s_v) over the expected length, answer by answer and child by child."""
    of = toy.small_world(0.6, vocabulary=3, length=3, seed=7)
    sketch = exact_sketch([of], everything([of]))
    batch, tree, correction = sketch.answers.batch, sketch.tree, preset(name)
    (parts,) = contributions(batch, sketch, [correction], LossConfig(score_centering=True))
    p, q = tree.old_log_probs.double().exp().tolist(), tree.rollout_log_probs.double().exp().tolist()
    weight = {
        "disabled": lambda _: 1.0,
        "decoupled_token_is": lambda r: min(r, 2.0),
        "decoupled_token_icepop": lambda r: r if 0.5 <= r <= 5 else 0.0,
    }[name]
    scores, parents, advantages = sketch.scores.double().numpy(), tree.parents.tolist(), batch.tensors()["advantages"]
    expected, length = np.zeros(scores.shape[1]), 0.0
    for row, path in enumerate(paths_of(tree.parents).tolist()):
        path = [node for node in path if node >= 0]
        chance = math.prod(q[node] for node in path)
        length += chance * len(path)
        for column, node in enumerate(path):
            siblings = [other for other, parent in enumerate(parents) if parent == parents[node]]
            mean = sum(q[v] * weight(p[v] / q[v]) * scores[v] for v in siblings)
            here = weight(p[node] / q[node]) * scores[node] - mean
            expected += chance * float(advantages[row, column]) * here
    got = (parts.u.sum(0) / parts.n.sum()).double().numpy()
    np.testing.assert_allclose(got, expected / length, atol=2e-5 * np.abs(expected).max() + 1e-6)


def test_score_centering_needs_all_tokens_at_a_position() -> None:
    of = toy.small_world(0.6, vocabulary=3, length=3, seed=7)
    sketch = exact_sketch([of], everything([of]))
    with pytest.raises(UsageError, match="one position"):
        contributions(sketch.answers.batch, sketch, [preset("decoupled_seq_is")], LossConfig(score_centering=True))
