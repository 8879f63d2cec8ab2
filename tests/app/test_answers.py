"""Each page answers its question in a sentence, with numbers that other ways give as well."""

import pytest
from app_pages import committed, headlines, one_scan, open_app, said

from rlcorr.gradients.bootstrap import Interval
from rlcorr.records import runs

__all__ = ["committed", "one_scan"]  # fixtures
pytestmark = pytest.mark.usefixtures("committed")


def test_the_bench_says_what_its_numbers_say() -> None:
    at = open_app("views/bench.py", run="kv_fp8_e5m2", preset="decoupled_geo_rs_token_tis")
    numbers = {label: text for label, (text, _) in headlines(at).items()}
    assert (
        f"This keeps {numbers['Kept tokens']} of the tokens and clips the weights of {numbers['Weights clipped']}. The "
        f"effective sample size is {numbers['ESS of the kept']}."
    ) in said(at)
    at = open_app("views/bench.py", run="kv_fp8_e5m2", preset="decoupled_token_icepop")
    zeroed = headlines(at)["Weights clipped"][0]
    assert f"of the tokens and sets the weights of {zeroed} to 0." in said(at)


def test_tokens_names_the_largest_gap() -> None:
    run = runs.find_run("kv_fp8_e5m2")
    batch = runs.read_step(run, 48).batch
    d = (batch.tensors()["old_log_probs"] - batch.rollout_log_probs).double().where(batch.response_mask, 0)
    row, column = divmod(int(d.abs().argmax()), d.shape[1])
    k3 = (d.exp() - 1 - d)[batch.response_mask].sort(descending=True).values
    share = float(k3[: -(-len(k3) // 100)].sum() / k3.sum())
    text = said(open_app("views/tokens.py", run="kv_fp8_e5m2"))
    assert f"1 % of the tokens make {100 * share:.2f} % of the mismatch" in text
    assert f"This is the largest gap, token {column} of answer {row}." in text
    q, p = (batch.tensors()[side][row, column].exp() for side in ("rollout_log_probs", "old_log_probs"))
    assert f"has {100 * q:.0f} % in the sampler and {100 * p:.2f} % in the trainer." in text
    assert f"Token {column} of answer {row}: " in text  # it is open


def test_training_says_how_reward_and_mismatch_went() -> None:
    rows = runs.read_metrics(runs.find_run("kv_fp8_e5m2"))
    reward = [row["reward"] for row in rows]
    text = said(open_app("views/training.py", run="kv_fp8_e5m2"))
    first, last = (f"{sum(ten) / 10:.2f}" for ten in (reward[:10], reward[-10:]))
    assert f"In 48 steps the mean reward went from {first} to {last}, the mean gap of a token went from" in text


def test_compare_takes_neither_where_the_data_do_not_tell() -> None:
    text = said(open_app("views/compare.py", run="kv_fp8_e5m2", preset_b="decoupled_seq_is"))
    assert "A step on 256 answers does not tell A from B" in text


def test_compare_takes_the_better_one_if_the_interval_excludes_0() -> None:
    from views.compare import advice

    for progress, expected in (
        (Interval(0.2, 0.1, 0.3), "A step of B on 64 answers makes more progress: η is 0.20"),
        (Interval(-0.2, -0.3, -0.1), "A step of A on 64 answers makes more progress: η is 0.20"),
        (Interval(0.0, 0.0, 0.0), "A step of A or of B on 64 answers makes the same progress"),
    ):
        assert advice(progress, 64).startswith(expected)


def test_the_first_and_the_last_steps_of_a_run() -> None:
    from data.recorded import first_and_last

    assert first_and_last(list(range(60))) == (4.5, 54.5, 10)  # ten steps at each end
    assert first_and_last([1.0, 3.0, 7.0, 8.0, 9.0, 11.0, 13.0]) == (2.0, 12.0, 2)  # a third of a short run
    assert first_and_last([1.0, None, 2.0, 4.0]) == (1.0, 4.0, 1)  # a step without a value is skipped
    for too_few in ([], [1.0, 2.0], [None, None, 3.0, 4.0]):
        assert first_and_last(too_few) is None
