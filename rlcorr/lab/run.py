"""The Lab's training loop, for several thresholds and seeds at once, with the library's correction and loss."""

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from rlcorr.config import CorrectionConfig, LossConfig
from rlcorr.lab import policy, task
from rlcorr.lab.experiment import Experiment
from rlcorr.lab.random_numbers import NOISE, SAMPLES, Draw, normals, stream, uniforms
from rlcorr.losses.advantages import group_normalised
from rlcorr.losses.kl import kl_penalty
from rlcorr.losses.objective import policy_loss
from rlcorr.ratios import k3, ratio
from rlcorr.types import CorrectionResult, TokenBatch

ANSWERS = 8
"""Answers to each prompt at each step."""
_LOSS = CorrectionConfig(loss_type="gpg")  # one update per batch: a clip around the policy itself would never act
_OPTIMIZERS = {"adamw": torch.optim.Adam, "sgd": torch.optim.SGD}  # AdamW without weight decay is Adam
Numbers = dict[str, Tensor]


@dataclass(frozen=True)
class Curves:
    """Numbers before each update, (thresholds, seeds, steps) float64 each."""

    reward: Tensor
    """Exact expected reward of the policy."""
    kl: Tensor
    """Exact KL(policy‖policy of the start) of an answer, averaged over the prompts."""
    penalty: Tensor
    """What the chosen KL estimator shows of it, per token; 0 without one."""
    ess: Tensor
    """Effective sample size of the weights, (Σw)²/(n Σw²); 0 if all are 0."""
    clipped: Tensor
    """Share of the tokens whose weights are changed by a bound."""
    mean_ratio: Tensor
    k3: Tensor
    """Mean of r − 1 − log r over the tokens, with r = π/π_sampler."""


def run(experiment: Experiment, thresholds: Sequence[float | None] = ()) -> Curves:
    """Train once for every threshold and seed, and return the curves.

    Every threshold sees the same random numbers, so that a difference between two of them is one of the correction.

    Args:
        experiment: the settings.
        thresholds: bounds on the weights, each in the place of the experiment's own; None: no weights. Without any,
            no correction and the experiment's threshold.
    """
    arms = thresholds or (None, experiment.threshold)
    seeds = range(experiment.seed, experiment.seed + experiment.seeds)
    starts = [policy.start(seed, experiment.length) for seed in seeds]
    network = tuple(torch.cat([one[part] for one in starts] * len(arms)).requires_grad_() for part in (0, 1))
    rows = list(_steps(experiment, arms, (network[0], network[1])))
    return Curves(
        **{name: torch.stack([row[name] for row in rows], -1).view(len(arms), len(seeds), -1) for name in rows[0]}
    )


def _steps(experiment: Experiment, arms: Sequence[float | None], network: policy.Network) -> Iterator[Numbers]:
    """Yield the numbers of each step, (N,) each, and train the networks in place."""
    optimizer = _OPTIMIZERS[experiment.optimizer](network, lr=experiment.learning_rate)
    reference = policy.log_probs(network).detach()
    history: deque[Tensor] = deque(maxlen=experiment.lag + 1)  # log π of the last steps; the first one samples
    for step in range(experiment.steps):
        now = policy.log_probs(network)
        history.append(now.detach())
        sampler = _sampler(experiment, history[0], step)
        answers = _sampled(experiment, sampler, step)
        loss, numbers = _loss(experiment, arms, now, sampler, reference, answers)
        yield numbers
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def _per_seed(experiment: Experiment, draw: Draw, number: int, shape: tuple[int, ...]) -> Tensor:
    """Return random numbers of a stream, (seeds, *shape), the same for every arm."""
    count = torch.Size(shape).numel()
    seeds = range(experiment.seed, experiment.seed + experiment.seeds)
    return torch.stack([draw(seed, number, count).view(shape) for seed in seeds])


def _sampler(experiment: Experiment, old: Tensor, step: int) -> Tensor:
    """Return log π_sampler of every digit, (N, P, T, V): of the old weights, with noise on the logits."""
    if experiment.noise == 0:
        return old
    noise = _per_seed(experiment, normals, stream(NOISE, step), tuple(old.shape[1:]))
    return (old + experiment.noise * noise.repeat(len(old) // len(noise), 1, 1, 1)).log_softmax(-1)


def _sampled(experiment: Experiment, sampler: Tensor, step: int) -> Tensor:
    """Return the drawn answers, (N, P, G, T): each digit is the first whose cumulative probability is larger."""
    drawn = _per_seed(experiment, uniforms, stream(SAMPLES, step), (task.PROMPTS, ANSWERS, experiment.length))
    below = _nucleus(sampler.exp(), experiment.top_p).cumsum(-1)
    level = drawn.repeat(len(sampler) // len(drawn), 1, 1, 1)[..., None] * below[:, :, None, :, -1:]
    return (level >= below[:, :, None]).sum(-1).clamp(max=task.BASE - 1)


def _nucleus(probabilities: Tensor, top_p: float) -> Tensor:
    """Return the probabilities of the likeliest digits that together have top_p, and 0 for the others."""
    if top_p == 1:
        return probabilities
    falling, order = probabilities.sort(dim=-1, descending=True, stable=True)
    before = falling.cumsum(-1) - falling
    return torch.zeros_like(probabilities).scatter(-1, order, torch.where(before < top_p, falling, 0))


def _loss(
    experiment: Experiment,
    arms: Sequence[float | None],
    now: Tensor,
    sampler: Tensor,
    reference: Tensor,
    answers: Tensor,
) -> tuple[Tensor, Numbers]:
    """Return the sum of the losses of all networks, and the numbers of the step."""
    nets, right = len(now), task.targets(experiment.length)
    scores = (answers == right[:, None]).all(-1).double()
    groups = torch.arange(nets * task.PROMPTS).repeat_interleave(ANSWERS)
    advantages = group_normalised(scores.flatten(), groups)

    def of_answers(log_probs: Tensor) -> Tensor:
        table = log_probs[:, :, None].expand(*answers.shape, task.BASE)
        return table.gather(-1, answers[..., None]).reshape(-1, experiment.length)

    theta, behind, ref = of_answers(now), of_answers(sampler), of_answers(reference)
    mask = torch.ones_like(behind, dtype=torch.bool)
    batch = TokenBatch(
        mask, behind, old_log_probs=theta.detach(), ref_log_probs=ref,
        advantages=advantages[:, None].expand(-1, experiment.length),
    )  # fmt: skip
    d = theta.detach() - behind
    weights, is_changed = _weights(experiment, arms, d, mask)
    result = CorrectionResult(d, weights, mask, torch.zeros_like(mask, dtype=torch.int8))
    value, _ = policy_loss(theta, batch, result, _LOSS, _penalised(experiment))
    full = now.detach()
    penalty = kl_penalty(theta.detach(), ref, experiment.penalty) if experiment.penalty != "none" else 0 * d
    numbers = {"reward": task.reward(full, right), "kl": (full.exp() * (full - reference)).sum((-1, -2)).mean(-1)}
    return value * nets, numbers | _means(nets, d, weights, is_changed, penalty)


def _means(nets: int, d: Tensor, weights: Tensor, is_changed: Tensor, penalty: Tensor) -> Numbers:
    """Return the numbers of each network's tokens."""

    def mean(x: Tensor) -> Tensor:
        return x.reshape(nets, -1).mean(-1)

    return {
        "penalty": mean(penalty),
        "ess": torch.where(mean(weights) > 0, mean(weights).square() / mean(weights.square()), 0),
        "clipped": mean(is_changed.double()),
        "mean_ratio": mean(ratio(d)),
        "k3": mean(k3(d)),
    }


def _weights(experiment: Experiment, arms: Sequence[float | None], d: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """Return the weights and which of them a bound has changed, (B, T): rows are arms, then seeds, prompts, answers."""
    weights, is_changed = torch.ones_like(d), torch.zeros_like(mask)
    for rows, threshold in zip(torch.arange(len(d)).chunk(len(arms)), arms, strict=True):
        if threshold is not None and experiment.ratio != "none":
            rule = experiment.weights(threshold)
            raw = rule.raw(d[rows], mask[rows])
            outside = torch.logical_or(*rule.outside(raw))
            bounded = (~outside).to(raw) if experiment.bound == "reject" else rule.bounded(raw)
            weights[rows], is_changed[rows] = bounded.expand_as(d[rows]), outside.expand_as(d[rows])
    return weights, is_changed


def _penalised(experiment: Experiment) -> LossConfig:
    kind, coef = experiment.penalty, experiment.penalty_coef
    return LossConfig() if kind == "none" else LossConfig(use_kl_loss=True, kl_loss_type=kind, kl_loss_coef=coef)
