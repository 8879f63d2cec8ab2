"""The committed runs with answers of hundreds of tokens: checks of what `make bench ARGS=long` and the lessons need."""

import pytest
import torch

from rlcorr.correction import correct
from rlcorr.presets import preset
from rlcorr.ratios import over_sequence, ratio
from rlcorr.records import runs
from rlcorr.records.step_files import StepRecord
from rlcorr.train.inputs import sorting

LONG = ("long_bf16", "long_kv_fp8_e5m2", "long_stale_4")
long_runs = pytest.mark.parametrize("name", LONG)


def recorded(name: str) -> list[StepRecord]:
    run = runs.ROOT / name
    return [runs.read_step(run, step) for step in runs.list_steps(run)]


@long_runs
def test_there_are_enough_answers_and_they_are_long(name: str) -> None:
    lengths = torch.cat([record.batch.response_mask.sum(-1) for record in recorded(name)])
    assert len(lengths) >= 256
    assert lengths.max() <= 494
    assert ((lengths >= 200) & (lengths <= 500)).double().mean() > 0.9
    assert (lengths >= 400).double().mean() > 0.2


@long_runs
def test_their_rewards_are_the_judges(name: str) -> None:
    for record in recorded(name):
        judged = [sorting.score(*pair) for pair in zip(record.prompts, record.responses, strict=True)]
        assert record.batch.tensors()["rewards"].tolist() == pytest.approx(judged)
        assert 0.3 < sum(judged) / len(judged) < 1


@long_runs
def test_products_of_the_first_tokens_average_to_one(name: str) -> None:
    """Check that E[∏ r] = 1 for the first 50 tokens of each answer, because the engine sampled the answers.

    Whole answers are not tested: if the gap is large, the average consists of rare large products, and the sample may
    have none of them.
    """
    products = []
    for record in recorded(name):
        d = correct(record.batch, preset("disabled")).log_ratio.double()
        products.append(ratio(over_sequence(d, record.batch.response_mask & (torch.arange(d.shape[1]) < 50), "sum")))
    w = torch.cat(products)
    assert abs(float(w.mean()) - 1) < 3 * float(w.std()) / len(w) ** 0.5
