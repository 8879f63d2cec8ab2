"""The committed runs with answers of hundreds of tokens: checks of what the lessons need."""

import pytest
import torch

from rlcorr.correction import correct
from rlcorr.presets import preset
from rlcorr.ratios import over_sequence, ratio
from rlcorr.records import runs
from rlcorr.train.inputs import sorting

LONG = ("long_bf16", "long_kv_fp8_e5m2", "long_stale_4")


@pytest.mark.parametrize("name", LONG)
def test_the_answers_are_long_and_have_the_rewards_of_the_judge(name: str) -> None:
    """Check also that E[∏ r] = 1 for the first 50 tokens of each answer, because the engine sampled the answers.

    Whole answers are not tested: if the gap is large, the average consists of rare large products, and the sample may
    have none of them.
    """
    lengths, products = [], []
    for record in (runs.read_step(runs.ROOT / name, step) for step in runs.list_steps(runs.ROOT / name)):
        judged = [sorting.score(*pair) for pair in zip(record.prompts, record.responses, strict=True)]
        assert record.batch.tensors()["rewards"].tolist() == pytest.approx(judged)
        assert 0.3 < sum(judged) / len(judged) < 1
        mask = record.batch.response_mask
        d = correct(record.batch, preset("disabled")).log_ratio.double()
        products.append(ratio(over_sequence(d, mask & (torch.arange(d.shape[1]) < 50), "sum")))
        lengths.append(mask.sum(-1))
    length, w = torch.cat(lengths), torch.cat(products)
    assert len(length) >= 256
    assert length.max() <= 494
    assert ((length >= 200) & (length <= 500)).double().mean() > 0.9
    assert (length >= 400).double().mean() > 0.2
    assert abs(float(w.mean()) - 1) < 3 * float(w.std()) / len(w) ** 0.5
