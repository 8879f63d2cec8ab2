"""The sampler's mean score at every position of an answer tree, which score centering subtracts."""

import torch
from torch import Tensor

from rlcorr.config import CorrectionConfig
from rlcorr.gradients.sketch import ExactSketch
from rlcorr.losses.score_centering import score_coefficients_of


def mean_scores(sketch: ExactSketch, config: CorrectionConfig) -> tuple[Tensor, Tensor]:
    """Compute E_q[w ∇log π_old] at every position of the tree, over the tokens that the tree has there.

    What the tree leaves out counts as the tail of `centering_terms`.

    Returns:
        A table (P + E, K), with a row for the first position of each prompt, and for the position after each node; and
        the row for each response token of the answers, (N,).
    """
    tree = sketch.tree
    prompts = int(tree.prompts.max()) + 1
    places = torch.where(tree.parents >= 0, tree.parents.long() + prompts, tree.prompts.long())
    count = prompts + len(tree.parents)
    p, q = tree.old_log_probs.double().exp(), tree.rollout_log_probs.double().exp()
    total_p, total_q = (torch.zeros(count).double().index_add_(0, places, x) for x in (p, q))
    coefficients = score_coefficients_of(p, q, total_p[places], total_q[places], config).to(sketch.scores)
    table = torch.zeros(count, sketch.directions).to(sketch.scores)
    table.index_add_(0, places.to(table.device), coefficients[:, None] * sketch.scores)
    return table, places[sketch.answers.nodes]
