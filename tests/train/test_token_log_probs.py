"""Log-probs and entropies in chunks of tokens: the same values and gradients as from all logits, with less memory."""

from collections.abc import Callable

import pytest
import torch
from allocations import peak
from torch import Tensor, nn

from rlcorr.train.learner.token_log_probs import token_log_probs

ROWS, COLUMNS, WIDTH, VOCABULARY = 3, 5, 8, 40


def inputs(*, bias: bool) -> tuple[nn.Linear, Tensor, Tensor]:
    torch.manual_seed(0)
    head = nn.Linear(WIDTH, VOCABULARY, bias=bias)
    hidden = torch.randn(ROWS, COLUMNS, WIDTH, requires_grad=True)
    return head, hidden, torch.randint(VOCABULARY, (ROWS, COLUMNS))


def plainly(head: nn.Linear, hidden: Tensor, ids: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    """In float64, from all logits: log p = l − log Σ e^l, and log Σ e^l − Σ p l."""
    bias = 0 if head.bias is None else head.bias.double()
    logits = (hidden.double() @ head.weight.double().T + bias) / temperature
    total = logits.logsumexp(-1)
    p = (logits - total[..., None]).exp()
    return logits.gather(-1, ids[..., None])[..., 0] - total, total - (p * logits).sum(-1)


def gradients(of: Tensor, head: nn.Linear, hidden: Tensor) -> list[Tensor]:
    return [gradient.double() for gradient in torch.autograd.grad(of, [hidden, *head.parameters()])]


@pytest.mark.parametrize("tokens_at_once", [1, 4, 15, 1000])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_chunks_change_nothing(temperature: float, bias: bool, tokens_at_once: int) -> None:
    head, hidden, ids = inputs(bias=bias)
    at_once = tokens_at_once * VOCABULARY
    weight = torch.linspace(-1, 2, ROWS * COLUMNS).view(ROWS, COLUMNS)
    log_probs, entropies = token_log_probs(
        head, hidden, ids, temperature, entropy_gradient=True, logits_at_once=at_once
    )
    expected, expected_entropies = plainly(head, hidden, ids, temperature)
    torch.testing.assert_close(log_probs.double(), expected, atol=1e-6, rtol=1e-6)
    torch.testing.assert_close(entropies.double(), expected_entropies, atol=1e-6, rtol=1e-6)
    got = gradients((weight * (log_probs + 0.3 * entropies)).sum(), head, hidden)
    wanted = gradients((weight * (expected + 0.3 * expected_entropies)).sum(), head, hidden)
    for ours, theirs in zip(got, wanted, strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-6 * float(theirs.abs().max()), rtol=1e-6)


@pytest.mark.parametrize("tokens_at_once", [4, 1000])
def test_entropies_have_no_gradient_unless_asked_for(tokens_at_once: int) -> None:
    head, hidden, ids = inputs(bias=False)
    log_probs, entropies = token_log_probs(head, hidden, ids, 1.0, logits_at_once=tokens_at_once * VOCABULARY)
    assert not entropies.requires_grad
    assert log_probs.requires_grad
    with torch.no_grad():
        again, _ = token_log_probs(head, hidden, ids, 1.0, logits_at_once=tokens_at_once * VOCABULARY)
    assert torch.equal(again, log_probs)


def test_a_head_that_is_tied_gets_the_gradient_of_both_uses() -> None:
    """The embedding of each token is a row of the head: its gradient is the sum of both, as without chunks."""
    head, _, ids = inputs(bias=False)

    def gradient(of: Callable[[Tensor], Tensor]) -> Tensor:
        return torch.autograd.grad(of(head.weight[ids].tanh()).sum(), head.weight)[0].double()

    got = gradient(lambda hidden: token_log_probs(head, hidden, ids, 1.0, logits_at_once=4 * VOCABULARY)[0])
    wanted = gradient(lambda hidden: plainly(head, hidden, ids, 1.0)[0])
    torch.testing.assert_close(got, wanted, atol=1e-6 * float(wanted.abs().max()), rtol=1e-6)


LARGE, TOKENS = 151_936, 256
"""The vocabulary of Qwen2.5."""
LOGITS = 4 * LARGE * TOKENS


@pytest.mark.slow  # a gigabyte of logits
def test_memory_grows_with_the_chunk_and_not_with_the_batch() -> None:
    """The head's gradient is there in either case, and a piece of it more while a chunk's is added."""
    torch.manual_seed(0)
    head = nn.Linear(8, LARGE, bias=False)
    hidden, ids = torch.randn(TOKENS, 1, 8, requires_grad=True), torch.randint(LARGE, (TOKENS, 1))

    def bytes_of(tokens_at_once: int) -> int:
        def work() -> object:
            log_probs, _ = token_log_probs(head, hidden, ids, 1.0, logits_at_once=tokens_at_once * LARGE)
            return torch.autograd.grad(log_probs.sum(), [hidden, head.weight])

        return peak(work)

    of_head, of_chunk = 4 * 8 * LARGE, LOGITS // (TOKENS // 16)
    whole, sixteen, thirty_two = (bytes_of(count) for count in (TOKENS, 16, 32))
    assert whole > 2 * LOGITS
    assert sixteen < 5 * of_chunk + 1.2 * of_head
    assert thirty_two - sixteen == pytest.approx((whole - sixteen) / 15, rel=0.2)
