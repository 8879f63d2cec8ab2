"""What an engine is sent, what is kept for the backward pass, and log-probs of tokens in chunks."""

from pathlib import Path

import pytest
import torch
from allocations import peak
from tiny import CPU, save_tiny_model
from torch import Tensor, nn

from rlcorr.train.learner.policy import Policy, Scores, engine_weights, load_lm
from rlcorr.train.learner.token_log_probs import token_log_probs
from rlcorr.train.rollout.engine import Samples, to_batch


def test_a_tied_head_is_sent_to_the_engine(tiny_model: Path) -> None:
    policy = Policy(load_lm(tiny_model, CPU))
    sent = dict(engine_weights(policy.state_dict(), policy.lm))
    assert torch.equal(sent["lm_head.weight"], sent["model.embed_tokens.weight"])
    assert set(sent) == {*policy.lm.state_dict(), "lm_head.weight"}


def test_checkpointed_layers_change_no_gradient_and_keep_less(tmp_path: Path) -> None:
    """Eight layers of width 64 keep over 20 tensors as wide as the layer each; checkpointed, one each, and one layer's
    at a time in the backward pass."""
    model = save_tiny_model(tmp_path, layers=8)
    rows = torch.randint(3, 20, (4, 40)).tolist()
    batch = to_batch([[1, 5, 6]] * 4, Samples(rows, [[0.0] * 40] * 4), CPU)
    gradients, peaks = [], []
    for checkpointed in (False, True):
        policy = Policy(load_lm(model, CPU))
        if checkpointed:
            policy.checkpoint_layers()
        scores: list[Scores] = []
        peaks.append(peak(lambda p=policy, s=scores: s.append(p(batch, 1.0)) or s))
        (scores[0].log_probs.sum() + scores[0].values.sum()).backward()  # pyright: ignore[reportOptionalMemberAccess]
        gradients.append(torch.cat([p.grad.flatten() for p in policy.parameters() if p.grad is not None]))
    assert torch.equal(*gradients)
    assert peaks[1] < peaks[0] / 3


# --- log-probs of tokens in chunks ---


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


@pytest.mark.parametrize(("tokens_at_once", "bias", "temperature"), [(1, True, 1.0), (4, False, 0.7), (99, True, 0.7)])
def test_chunks_change_nothing(temperature: float, bias: bool, tokens_at_once: int) -> None:
    head, hidden, ids = inputs(bias=bias)
    at_once = tokens_at_once * VOCABULARY
    weight = torch.linspace(-1, 2, ROWS * COLUMNS).view(ROWS, COLUMNS)
    log_probs, entropies = token_log_probs(head, hidden, ids, temperature, logits_at_once=at_once)
    expected, expected_entropies = plainly(head, hidden, ids, temperature)
    torch.testing.assert_close(log_probs.double(), expected, atol=1e-6, rtol=1e-6)
    torch.testing.assert_close(entropies.double(), expected_entropies, atol=1e-6, rtol=1e-6)
    assert not entropies.requires_grad
    got = gradients((weight * log_probs).sum(), head, hidden)
    wanted = gradients((weight * expected).sum(), head, hidden)
    for ours, theirs in zip(got, wanted, strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-6 * float(theirs.abs().max()), rtol=1e-6)


LARGE, TOKENS = 20_000, 128
LOGITS = 4 * LARGE * TOKENS


def test_memory_grows_with_the_chunk_and_not_with_the_batch() -> None:
    """The head's gradient is there in either case, and that of one chunk while it is added."""
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
    assert sixteen < 5 * of_chunk + 4 * of_head
    assert thirty_two - sixteen < (whole - sixteen) / 4
