"""Noise on every tensor of a model, and random texts: the data with which the proof of a sync tests an engine."""

import torch
from torch import Tensor

from rlcorr.train.learner.policy import Policy
from rlcorr.train.rollout.engine import Samples, to_batch

CONTEXT, RESPONSE_TOKENS = 2, 4
"""Number of random tokens, and of sampled tokens after them. Both are small: rounding errors accumulate with length."""
WORK = 1.2e9
"""Responses times parameters of one repetition, which bounds the time of the proof."""
FEWEST, MOST = 17, 64
"""Responses per repetition for SmolLM2 and larger models, and for models of less than 20 million parameters."""
NOISE = {"q_proj": 0.25, "k_proj": 0.25, "v_proj": 0.08, "down_proj": 0.06, "gate_proj": 0.12, "up_proj": 0.12}
"""Standard deviation of the noise on a tensor, relative to its root mean square, by kind. With these values, each of
the 273 tensors of SmolLM2 changes the log-probs by about the same amount. `OTHER_NOISE` is for all other kinds."""
OTHER_NOISE = 0.1
SMALL, LARGE = 6, 3
"""Repetitions for models that are small enough for `MOST` responses, and for larger ones."""
MOVED = 0.7
"""Mean |Δ| of the log-probs that the noise must reach."""
DOUBLINGS = 5
SMALLEST_NOISE = 0.01
"""Smallest standard deviation of the noise, absolute: many biases are tensors of zeros."""


def noise_factor(policy: Policy, original: dict[str, Tensor]) -> float:
    """Return the multiple of the usual noise that changes the log-probs of random texts by `MOVED`.

    A shallow model needs more noise than a deep one, whose output would become chaotic.
    """
    texts = random_texts(policy, FEWEST, CONTEXT + RESPONSE_TOKENS, seed=0)
    zeros = [[0.0] * (len(text) - 1) for text in texts]
    device = next(policy.parameters()).device
    batch = to_batch([text[:1] for text in texts], Samples([text[1:] for text in texts], zeros), device)

    def log_probs() -> Tensor:
        return policy.in_float32()(batch, 1.0).log_probs[batch.response_mask]

    before, factors = log_probs(), [2.0**doubling for doubling in range(DOUBLINGS)]
    for factor in factors:
        add_noise(policy, original, factor, seed=0)
        if float((log_probs() - before).abs().mean()) >= MOVED:
            return factor
    return factors[-1]


def add_noise(policy: Policy, original: dict[str, Tensor], factor: float, seed: int) -> None:
    """Set every tensor to its original plus noise; a tied tensor gets noise once."""
    generator, seen = torch.Generator().manual_seed(seed), set()
    for name, tensor in policy.lm.state_dict().items():
        if tensor.data_ptr() in seen or not tensor.is_floating_point():
            continue
        seen.add(tensor.data_ptr())
        relative = factor * next((noise for kind, noise in NOISE.items() if kind in name), OTHER_NOISE)
        scale = max(relative * float(original[name].square().mean().sqrt()), SMALLEST_NOISE)
        noise = scale * torch.randn(tensor.shape, generator=generator)
        tensor.copy_(original[name] + noise.to(tensor.device))


def responses_of(policy: Policy) -> int:
    """Return the number of responses that a repetition samples."""
    parameters = sum(tensor.numel() for tensor in policy.lm.parameters())
    return int(min(max(WORK / parameters, FEWEST), MOST))


def repetitions_of(policy: Policy) -> int:
    """Return the number of times that the proof draws noise and texts."""
    return SMALL if responses_of(policy) == MOST else LARGE


def random_texts(policy: Policy, count: int, length: int, seed: int) -> list[list[int]]:
    """Return texts of random tokens from the whole vocabulary. They share no beginning, so rounding errors differ."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(policy.lm.config.vocab_size, (count, length), generator=generator).tolist()
