"""Zeros that were never filled in, and marks such as −9999, are named, and hide nothing else."""

import math

import torch
from causes import TOKENS, WIDTH, batch_of, draw, moved, noisy, patterns, rounded, scored, small, steep, unfilled

from rlcorr import TokenBatch
from rlcorr.analysis.triage import triage


def test_padding_is_named_with_its_side_and_count() -> None:
    drawn = draw(small())
    (symptom,) = triage(unfilled(drawn))
    below_half = scored(drawn).tensors()["old_log_probs"][:, 3] < math.log(0.5)
    assert symptom.pattern == "padding"
    assert symptom.numbers["tokens"] == int(below_half.sum())
    assert "the engine's log-prob is exactly 0" in symptom.sentence
    swapped = unfilled(drawn)
    (symptom,) = triage(
        swapped.replace(old_log_probs=swapped.rollout_log_probs, rollout_log_probs=swapped.old_log_probs)
    )
    assert "the trainer's log-prob is exactly 0" in symptom.sentence


def test_padding_hides_nothing_else() -> None:
    z = small()
    assert patterns(unfilled(draw(z), rounded(z))) == ["padding"]
    assert patterns(unfilled(draw(z, temperature=0.7))) == ["temperature", "padding"]
    assert set(patterns(unfilled(draw(z), noisy(z, 0.5)))) == {"padding", "undecided"}


def test_a_token_alone_in_its_nucleus_is_no_padding() -> None:
    z = small() / 3
    drawn = draw(z, top_p=0.3)
    assert int((drawn.rollout == 0).sum()) > TOKENS / 3
    assert patterns(scored(drawn)) == ["top-p mass"]


def test_a_turn_of_zeros_is_padding_and_no_cut() -> None:
    """Half of the tokens and fewer, at several sizes of noise; and a cut beside them is named as well."""
    for z, name in ((small(), "small"), (steep(), "steep")):
        for noise in (0.0, 0.1, 0.5):
            for columns in (1, 3, 5):
                batch = scored(draw(z), noisy(z, noise) if noise else rounded(z))
                got = patterns(zeroed(batch, columns))
                assert "padding" in got, (name, noise, columns, got)
                assert "top-p mass" not in got, (name, noise, columns, got)
        both = set(patterns(zeroed(scored(draw(z, top_p=0.8)), 3)))
        assert both == {"padding", "top-p mass"}, name


def test_zeros_that_a_cut_makes_are_no_padding() -> None:
    """Also those to which noise gives less than one half on the other side."""
    for z, name in ((small(), "small"), (steep(), "steep")):
        for top_p in (0.3, 0.5, 0.7, 0.9, 0.99):
            for noise in (0.0, 0.1, 0.5, 1.0):
                got = patterns(scored(draw(z, top_p=top_p), noisy(z, noise) if noise else z))
                assert "padding" not in got, (name, top_p, noise, got)


def test_a_side_of_nothing_but_zeros_was_not_filled_in() -> None:
    batch = scored(draw(small()))
    (symptom,) = triage(zeroed(batch, WIDTH))
    assert symptom.pattern == "padding"
    assert "exactly 0 on all 2,000 tokens. It was not filled in, or sampling was greedy." in symptom.sentence


def zeroed(batch: TokenBatch, columns: int) -> TokenBatch:
    return batch.replace(rollout_log_probs=batch.rollout_log_probs.clone().index_fill(1, torch.arange(columns), 0))


def test_marks_are_named_with_their_value_and_side() -> None:
    """The other tokens are rounded, so nothing else is worth a word. One column of ten is a tenth of the tokens."""
    z = small()
    batch = scored(draw(z), rounded(z))
    lowest = torch.finfo(torch.float32).min
    for mark, said in {
        -9999.0: "−9999",
        -100.0: "−100",
        -1e30: "−1e+30",
        -1e9: "−1e+09",
        lowest: "−3.40282e+38",
    }.items():
        for side, whose in (("rollout_log_probs", "engine"), ("old_log_probs", "trainer")):
            marked = batch.tensors()[side].clone().index_fill(1, torch.tensor([3]), mark)
            (symptom,) = triage(batch.replace(**{side: marked}))
            assert symptom.pattern == "padding", (mark, side)
            assert f"the {whose}'s log-prob is exactly {said} on 200 tokens (10 %)" in symptom.sentence, (mark, side)


def test_marks_on_both_sides_are_the_masks_fault() -> None:
    z = small()
    batch = scored(draw(z), rounded(z))
    sides = ("old_log_probs", "rollout_log_probs")
    marked = {side: batch.tensors()[side].clone().index_fill(1, torch.tensor([8, 9]), -100) for side in sides}
    (symptom,) = triage(batch.replace(**marked))
    assert (symptom.pattern, symptom.strength) == ("padding", 0.2)
    assert "both log-probs are exactly −100 on 400 tokens (20 %)" in symptom.sentence
    assert "The response_mask includes positions without a token." in symptom.sentence
    same = batch.replace(old_log_probs=marked["rollout_log_probs"], rollout_log_probs=marked["rollout_log_probs"])
    assert patterns(same) == ["padding"]  # not "identical" alone, which would look well


def test_a_mark_hides_no_other_fault() -> None:
    z = small()
    batch = scored(draw(z, temperature=0.7))
    marked = batch.rollout_log_probs.clone().index_fill(1, torch.tensor([3]), -9999)
    assert set(patterns(batch.replace(rollout_log_probs=marked))) == {"padding", "temperature"}
    moved_and_marked = moved(draw(z), rounded(z)).rollout_log_probs.clone().index_fill(1, torch.tensor([0]), -9999)
    assert set(patterns(scored(draw(z), rounded(z)).replace(rollout_log_probs=moved_and_marked))) == {
        "padding", "shift by one",
    }  # fmt: skip


def test_log_probs_that_are_far_apart_are_no_marks() -> None:
    """In steps of 0.5, as bfloat16 has them there: many values repeat, and none is most of them."""
    steps = -60 - 0.5 * (torch.arange(TOKENS) % 40).double()
    assert "padding" not in patterns(batch_of(steps, torch.linspace(-3, -0.5, TOKENS).double()))
    assert "padding" not in patterns(batch_of(torch.tensor([-9999.0, -9999.0] + [-1.0] * 18), torch.full((20,), -1.1)))
