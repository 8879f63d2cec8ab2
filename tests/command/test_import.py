"""What an import says of versions and turns: numbers by hand, and nothing where there is one of each."""

import pytest
import torch

from rlcorr import TokenBatch
from rlcorr.analysis.segments import FEW, Segment, age_share
from rlcorr.command.import_ import MOST, segment_lines

PAIR = TokenBatch.from_log_probs(
    torch.tensor([[-1.0, -1.0, -1.0, -1.0]]), torch.tensor([[-1.0, -1.2, -0.5, -0.5]]), torch.ones(1, 4)
)


def test_the_gap_by_age_and_by_turn() -> None:
    """d is 0, 0.2, −0.5 and −0.5; k3 = e^d − 1 − d is 0, 0.0214, 0.1065 and 0.1065."""
    batch = PAIR.replace(policy_versions=torch.tensor([[5, 5, 7, 7]]), turn_ids=torch.tensor([[0, 1, 1, 1]]))
    lines = [line.split() for line in segment_lines(batch, 8)]
    assert lines[1:5] == [
        ["Step", "8,", "tokens", "by", "the", "age", "of", "their", "weights,", "in", "updates:"],
        ["tokens", "k3", "mean", "|d|", "mean", "d"],
        ["0", "2", "0.11", "0.5", "-0.5"],
        ["2", "2", "0.011", "0.1", "+0.1"],
    ]
    assert " ".join(lines[5] + lines[6]) == (
        "k3 is 0.11 on the 2 tokens of weights 0 updates old, and 0.059 on all. So the gap does not grow with the age "
        "of the weights."
    )
    assert lines[-2:] == [["0", "1", "0", "0", "+0"], ["1", "3", "0.078", "0.4", "-0.27"]]


def test_the_share_of_k3_that_comes_with_the_age_is_said() -> None:
    """k3 is 0 and 0.0214 on the oldest two, 0.1065 on the two youngest; turned round, 1 − 0.0107/0.0586 is 82 %."""
    batch = PAIR.replace(policy_versions=torch.tensor([[7, 7, 5, 5]]))
    said = " ".join(" ".join(segment_lines(batch, 8)).split())
    assert "k3 is 0.011 on the 2 tokens of weights 0 updates old, and 0.059 on all." in said
    assert "older weights make 82 % of k3. With sampled_log_probs it would be measured." in said


def test_one_version_and_one_turn_need_no_table() -> None:
    assert list(segment_lines(PAIR, 8)) == []
    one = PAIR.replace(policy_versions=torch.tensor([7]), turn_ids=torch.zeros(1, 4, dtype=torch.int64))
    assert list(segment_lines(one, 8)) == []


def test_many_turns_are_cut_off() -> None:
    count = MOST + 3
    zeros = torch.zeros(1, count)
    batch = TokenBatch.from_log_probs(zeros, zeros, torch.ones(1, count)).replace(turn_ids=torch.arange(count)[None])
    lines = list(segment_lines(batch, 1))
    assert len(lines) == 3 + MOST + 1
    assert lines[-1] == "3 more."


def test_few_tokens_of_the_youngest_weights_prove_nothing() -> None:
    old = Segment(3, 900, 0.01, 0.1, 0.0)
    for tokens, is_most in ((FEW - 1, False), (FEW, True)):
        part = age_share((Segment(0, tokens, 0.001, 0.03, 0.0), old))
        assert part is not None
        assert part.is_most == is_most
    part = age_share((Segment(0, 900, 0.001, 0.03, 0.0), Segment(3, 900, 0.002, 0.1, 0.0)))
    assert part is not None
    assert part.share == pytest.approx(1 / 3)
    assert not part.is_most
