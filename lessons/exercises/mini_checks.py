"""Checks of the pieces of mini.py that no exercise of a lesson checks: drawing, scoring and the clip."""

from collections.abc import Callable
from typing import Any

import torch
from count_on import END, LONGEST, START, VOCABULARY, Policy
from torch import Tensor

from rlcorr.teaching.check import Exercise

Sample = Callable[[Policy, Tensor, torch.Generator], tuple[Tensor, Tensor, Tensor]]
DRAWS = 3000
"""Answers of one check of `sample`: the standard error of a share of them is below 0.01."""


def make_policy(seed: int) -> Policy:
    """Return a policy that prefers some tokens, in float64."""
    torch.manual_seed(seed)
    policy = Policy().double()
    with torch.no_grad():
        policy.head[-1].weight *= 4  # pyright: ignore[reportOperatorIssue] — the linear layer's
    return policy


# --- sample ---


@torch.no_grad()
def draw(
    policy: Policy, prompts: Tensor, generator: torch.Generator,
    *, greedy: bool = False, with_end: bool = True, normalised: bool = True, follows: bool = True, stops: bool = True,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    tokens, values, mask = (
        torch.zeros(len(prompts), LONGEST, dtype=kind) for kind in (torch.int64, torch.float64, torch.bool)
    )
    before, ended = torch.full_like(prompts, START), torch.zeros_like(prompts, dtype=torch.bool)
    for place in range(LONGEST):
        logits = policy(prompts, before, torch.full_like(prompts, place)).double()
        drawn = logits.argmax(-1) if greedy else logits.softmax(-1).multinomial(1, generator=generator)[:, 0]
        rows = torch.arange(len(prompts))
        tokens[:, place], mask[:, place] = drawn, ~ended
        values[:, place] = (logits.log_softmax(-1) if normalised else logits)[rows, drawn]
        ended = ended | ((drawn == END) & stops)
        mask[:, place] &= with_end | (drawn != END)
        before = drawn if follows else before
    return tokens, values, mask


def described(sample: Sample) -> Callable[[int, int], dict[str, Any]]:
    """Describe 3,000 answers of `sample` to one prompt: shares, and whether log-probs and mask are right."""

    def description(seed: int, prompt: int) -> dict[str, Any]:
        policy, prompts = make_policy(seed), torch.full((DRAWS,), prompt)
        tokens, engine_logp, mask = sample(policy, prompts, torch.Generator().manual_seed(seed))
        first = torch.bincount(tokens[:, 0], minlength=VOCABULARY) / len(tokens)
        ends = tokens == END
        real = ends.cumsum(1) - ends.int() == 0
        right_logp = torch.isclose(engine_logp, score(policy, prompts, tokens), atol=1e-6) | ~real
        return {
            "shares of the first tokens": first,
            "shares that have ended after 1, 2, 3 tokens": (ends.cumsum(1) > 0).double().mean(0)[:3],
            "log-probs are the policy's": bool(right_logp.all()),
            "the mask is True up to END": bool((mask | ~real).all()),
            "the mask is False after END": not bool((mask & ~real).any()),
        }

    return description


@torch.no_grad()
def _exactly(seed: int, prompt: int) -> dict[str, Any]:
    """Return what `described` estimates, summed over all ways to the first three tokens."""
    policy, at_start = make_policy(seed), torch.tensor(START)
    first = policy(torch.tensor(prompt), at_start, torch.tensor(0)).softmax(-1)
    chance, ended = first, [float(first[END])]
    for place in (1, 2):
        going = chance.clone()
        going[END] = 0
        following = policy(torch.tensor(prompt), torch.arange(VOCABULARY), torch.tensor(place)).softmax(-1)
        chance = going @ following
        ended.append(ended[-1] + float(chance[END]))
    return {
        "shares of the first tokens": first,
        "shares that have ended after 1, 2, 3 tokens": torch.tensor(ended),
        "log-probs are the policy's": True,
        "the mask is True up to END": True,
        "the mask is False after END": True,
    }


SAMPLE = Exercise(
    expected=_exactly,
    cases=((0, 3), (1, 6)),
    mistakes=(
        (described(lambda *given: draw(*given, greedy=True)),
         "Every answer is the same: you took the likeliest token. Draw one, with `multinomial`."),
        (described(lambda *given: draw(*given, follows=False)),
         "Every token was drawn after START. From the second on, the token before is the one just drawn."),
        (described(lambda *given: draw(*given, normalised=False)),
         "You recorded logits. A log-prob is the logit minus the logarithm of the sum of all exponentials: "
         "`log_softmax`."),
        (described(lambda *given: draw(*given, with_end=False)),
         "END was drawn like every other token, so the gradient needs it: the mask is True on it, False after it."),
        (described(lambda *given: draw(*given, stops=False)),
         "The mask goes on after END. What is drawn there is padding and earns nothing."),
    ),
    tolerance=0.04,
)  # fmt: skip

# --- log_probs ---


def score(policy: Policy, prompts: Tensor, tokens: Tensor) -> Tensor:
    """Return log-probs place by place, as `draw` computes them."""
    before, columns = torch.full_like(prompts, START), []
    for place in range(tokens.shape[1]):
        logits = policy(prompts, before, torch.full_like(prompts, place)).double()
        before = tokens[:, place]
        columns.append(logits.log_softmax(-1)[torch.arange(len(prompts)), before])
    return torch.stack(columns, 1)


def scored(log_probs: Callable[[Policy, Tensor, Tensor], Tensor]) -> Callable[[int, Tensor, Tensor], Tensor]:
    """Return the log-probs that a piece gives under the policy of a seed."""
    return lambda seed, prompts, tokens: log_probs(make_policy(seed), prompts, tokens)


def _at_once(policy: Policy, prompts: Tensor, tokens: Tensor, before: Tensor, normalised: bool = True) -> Tensor:
    logits = policy(prompts[:, None].expand_as(tokens), before, torch.arange(tokens.shape[1]).expand_as(tokens))
    values = logits.double().log_softmax(-1) if normalised else logits.double()
    return values.gather(-1, tokens[..., None])[..., 0]


def _shifted(tokens: Tensor, first: int = START) -> Tensor:
    return torch.cat([torch.full_like(tokens[:, :1], first), tokens[:, :-1]], 1)


LOG_PROBS = Exercise(
    expected=scored(score),
    cases=(
        (0, torch.tensor([4, 3]), torch.tensor([[4, 0, 8], [3, 6, 1]])),
        (1, torch.arange(8), torch.arange(96).view(8, 12) % 9),
    ),
    mistakes=(
        (scored(lambda policy, prompts, tokens: _at_once(policy, prompts, tokens, tokens)),
         "The network saw the token that it was asked for. Shift: the token before token t is token t − 1."),
        (scored(lambda policy, prompts, tokens: _at_once(policy, prompts, tokens, tokens.roll(1, 1))),
         "The token before the first one is START. With `roll`, the last token of the answer came to the front."),
        (scored(lambda policy, prompts, tokens: _at_once(policy, prompts, tokens, _shifted(tokens, 0))),
         "The token before the first one is START, which is 9, not 0."),
        (scored(lambda policy, prompts, tokens: _at_once(policy, prompts, tokens, _shifted(tokens), False)),
         "Those are logits: `log_softmax` first, then pick the token."),
        (scored(lambda *given: score(*given).exp()),
         "Those are probabilities. The ratio will need their logarithms."),
    ),
)  # fmt: skip

# --- clipped ---


def _ppo(new_logp: Tensor, trainer_logp: Tensor, advantage: Tensor) -> Tensor:
    """Differentiate min(ρA, clip(ρ)A) by log π, and divide by A."""
    here = new_logp.clone().requires_grad_()
    rho, a = (here - trainer_logp).exp(), advantage[:, None]
    value = torch.minimum(rho * a, rho.clamp(0.8, 1.2) * a).sum()
    return torch.autograd.grad(value, here)[0] / a


def _moved(*factors: float) -> tuple[Tensor, Tensor]:
    """Return log-probs of two rows after an update that multiplied the probabilities by these factors, and before."""
    before = torch.full((2, len(factors)), 0.2, dtype=torch.float64)
    return (before * torch.tensor(factors, dtype=torch.float64)).log(), before.log()


def _rho(new_logp: Tensor, trainer_logp: Tensor) -> Tensor:
    return (new_logp - trainer_logp).exp()


CLIPPED = Exercise(
    expected=_ppo,
    cases=(
        (*_moved(0.5, 0.9, 1.0, 1.1, 1.5), torch.tensor([1.0, -1.0], dtype=torch.float64)),
        (*_moved(0.79, 0.81, 1.19, 1.21), torch.tensor([-0.25, 3.0], dtype=torch.float64)),
    ),
    mistakes=(
        (lambda new, old, a: _rho(new, old).clamp(0.8, 1.2),
         "Clamping moves ρ to the bound. The clip makes min(ρA, clip(ρ)A) flat there, so its gradient is 0."),
        (lambda new, old, a: _rho(new, old).where((_rho(new, old) - 1).abs() <= 0.2, 0),
         "The clip stops a token on one side only: above 1 + ε if its advantage is positive, below 1 − ε if not."),
        (lambda new, old, a: _ppo(new, old, -a),
         "The sides are exchanged: you stop tokens that come back, and let those go on that have gone too far."),
        (lambda new, old, a: _ppo(new, old, a) * a[:, None],
         "That is times A. `loss` multiplies by A later."),
        (lambda new, old, a: _ppo(old, new, a),
         "Inverted: ρ is the new probability over that of the trainer."),
        (lambda new, old, a: (_ppo(new, old, a) > 0).double(),
         "This is the mask of the clip. The derivative of ρ by log π is ρ, so a token that is left counts ρ times."),
    ),
)  # fmt: skip
