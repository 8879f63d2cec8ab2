"""What is packed comes back: every array, bit for bit."""

import numpy as np
import pytest
import torch
from app_runs import make_record

from rlcorr.errors import UsageError
from rlcorr.presets import preset
from rlcorr.strips import packing
from rlcorr.strips.packing import Package, pack, pack_strip, package_of, read_strip, unpack
from rlcorr.strips.places import slider_places
from rlcorr.strips.strip import Strip, strip

PLACES = slider_places(1.001, 3.0, of_ratio=True)


@pytest.fixture(scope="module")
def made() -> Strip:
    batch = make_record(0, sequences=300, width=40).batch
    return strip(batch, preset("decoupled_geo_rs_token_tis"), PLACES, rule=0, side="band")


def test_a_strip_comes_back_as_it_was(made: Strip) -> None:
    back = read_strip(pack_strip(made))
    assert back.places == made.places
    assert back.numbers.keys() == made.numbers.keys()
    assert all(torch.equal(back.numbers[name], values) for name, values in made.numbers.items())
    before, after = package_of(made), package_of(back)
    assert before.arrays.keys() == after.arrays.keys()
    for name, array in before.arrays.items():
        np.testing.assert_array_equal(after.arrays[name], array, strict=True)
    assert (back.weights.low, back.weights.high) == (made.weights.low, made.weights.high)


def test_a_strip_of_131_thousand_tokens_is_small() -> None:
    """400 kB are allowed, for every preset's kind of bound; the mask, whose cells share no pattern, is most of it."""
    batch = make_record(0, sequences=210, width=1024, noise=0.05).batch
    assert int(batch.response_mask.sum()) > 130_000
    kinds = {"decoupled_token_is": (None, "upper"), "decoupled_geo_rs_token_tis": (0, "band")}
    for name, (rule, side) in kinds.items():
        assert len(pack_strip(strip(batch, preset(name), PLACES, rule=rule, side=side))) <= 400_000


def test_another_version_is_refused(made: Strip, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packing, "VERSION", 2)
    packed = pack_strip(made)
    monkeypatch.undo()
    with pytest.raises(UsageError, match="version 2; this program reads version 1"):
        unpack(packed)


def test_another_dtype_is_refused() -> None:
    with pytest.raises(UsageError, match="float32; a strip holds u1, u2, i4, f8"):
        pack(Package({"x": np.zeros(3, np.float32)}, {}))
