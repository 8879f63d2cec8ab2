"""Sketches of the toy, in random directions or in none."""

import torch
from torch import Tensor

from rlcorr.gradients import toy
from rlcorr.gradients.answers import AnswerTree
from rlcorr.gradients.sketch import ExactSketch, Reference
from rlcorr.types import TokenBatch


def node_scores(of: toy.Toy) -> Tensor:
    """∇ log π_θ(token) of every token of every answer, (N, T, S · V): e_token − π in the token's own row."""
    where, table = of.where, of.policies.theta.softmax(-1)
    scores = torch.zeros(*where.tokens.shape, *table.shape, dtype=torch.float64)
    rows, columns = where.mask.nonzero(as_tuple=True)
    states, tokens = where.states[rows, columns], where.tokens[rows, columns]
    scores[rows, columns, states] = -table[states]
    scores[rows, columns, states, tokens] += 1
    return scores.flatten(2)


def directions_of(of: toy.Toy, count: int, seed: int) -> Tensor:
    """(S · V, K), so that a product with it is a sketch."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(of.policies.theta.numel(), count, generator=generator, dtype=torch.float64) / count**0.5


def batch_of(of: toy.Toy, rows: Tensor) -> TokenBatch:
    policies = {"rollout_log_probs": of.policies.rollout, "old_log_probs": of.policies.old}
    return TokenBatch(
        response_mask=of.where.mask[rows],
        advantages=of.advantages[rows, None].expand(-1, of.where.mask.shape[1]).float(),
        **{name: toy.log_probs(of.where, logits)[rows].float() for name, logits in policies.items()},
    )


def drawn(of: toy.Toy, policy: Tensor, count: int, generator: torch.Generator) -> Tensor:
    """Numbers of answers."""
    return torch.multinomial(toy.probabilities(of.where, policy), count, replacement=True, generator=generator)


def sampled_reference(
    of: toy.Toy, scores: Tensor, count: int, generator: torch.Generator, blocks: int = 32
) -> Reference:
    """From so many on-policy answers; `scores` (N, T, K)."""
    rows, lengths = drawn(of, of.policies.old, count, generator), of.where.mask.sum(-1)
    of_answers = scores.sum(1) * of.advantages[:, None]
    by_token, by_sequence, tokens = (
        x[rows].unflatten(0, (blocks, -1)).sum(1).float() for x in (of_answers, of_answers / lengths[:, None], lengths)
    )
    return Reference(by_token, by_sequence, tokens, torch.full((blocks,), count / blocks))


def exact_sketch(worlds: list[toy.Toy], directions: Tensor) -> ExactSketch:
    """One world per prompt: every answer to each, node by node. The directions are those of the largest table; a
    smaller one has the first of its rows."""
    parts = [_tree_of(of, prompt) for prompt, of in enumerate(worlds)]
    nodes: dict[str, list[Tensor]] = {name: [] for name in ("prompts", "parents", "tokens", "old", "rollout")}
    scores, shift = [], 0
    for of, (columns, edges) in zip(worlds, parts, strict=True):
        for name, values in columns.items():
            nodes[name].append(torch.where(values >= 0, values + shift, -1) if name == "parents" else values)
        shift += len(columns["parents"])
        scores.append((node_scores(of) @ directions[: of.policies.theta.numel()])[edges].float())
    prompts, parents, tokens, old, rollout = (torch.cat(values) for values in nodes.values())
    tree = AnswerTree(prompts, parents, tokens, old, rollout, rollout)
    return ExactSketch(tree, advantages_of(worlds, tree), torch.cat(scores))


def advantages_of(worlds: list[toy.Toy], tree: AnswerTree) -> Tensor:
    """Of every token, answer by answer in the order of their last nodes: found by the tokens of the answer."""
    numbers = [
        {tuple(row[:length]): n for n, (row, length) in enumerate(zip(of.where.tokens.tolist(), lengths, strict=True))}
        for of, lengths in ((of, of.where.mask.sum(-1).tolist()) for of in worlds)
    ]
    parents, tokens = tree.parents.tolist(), tree.tokens.tolist()
    advantages: list[float] = []
    for leaf in sorted(set(range(len(parents))) - set(parents)):
        path, node = (), leaf
        while node >= 0:
            path, node = (tokens[node], *path), parents[node]
        prompt = int(tree.prompts[leaf])
        advantages += [float(worlds[prompt].advantages[numbers[prompt][path]])] * len(path)
    return torch.tensor(advantages)


def _tree_of(of: toy.Toy, prompt: int) -> tuple[dict[str, Tensor], tuple[Tensor, Tensor]]:
    """The nodes of one world, and for each the answer and the column where it first occurs."""
    numbers: dict[tuple[int, ...], int] = {}
    parents, tokens, first = [], [], []
    for column in range(of.where.tokens.shape[1]):
        for row in range(len(of.where.tokens)):
            path = tuple(of.where.tokens[row, : column + 1].tolist())
            if of.where.mask[row, column] and path not in numbers:
                numbers[path] = len(numbers)
                parents.append(numbers.get(path[:-1], -1))
                tokens.append(path[-1])
                first.append((row, column))
    rows, columns = torch.tensor(first).unbind(1)
    values = {
        name: toy.log_probs(of.where, logits)[rows, columns].float()
        for name, logits in (("old", of.policies.old), ("rollout", of.policies.rollout))
    }
    count = len(parents)
    whole = {"prompts": torch.full((count,), prompt), "parents": torch.tensor(parents), "tokens": torch.tensor(tokens)}
    return whole | values, (rows, columns)
