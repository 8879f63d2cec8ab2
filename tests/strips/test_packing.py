"""What Python packs, Python and a browser's JavaScript read: every array, bit for bit."""

import numpy as np
import pytest
import torch
from app_runs import make_record
from strip_scripts import by_javascript

from rlcorr.errors import UsageError
from rlcorr.presets import preset
from rlcorr.strips import packing
from rlcorr.strips.packing import Package, pack, pack_strip, package_of, read_strip, unpack
from rlcorr.strips.places import slider_places
from rlcorr.strips.strip import Strip, strip

PLACES = slider_places(1.001, 3.0, of_ratio=True)

# Of every array its shape and its values, and the cells of some places.
READ = """{
  about: strip.about,
  arrays: Object.fromEntries(
    Object.entries(strip.arrays).map(([name, { shape, values }]) => [name, { shape, values: [...values] }])),
  cells: Object.fromEntries([0, 300, 600].map((place) => {
    const codes = new Uint8Array(strip.arrays["cells/base"].values.length)
    return [place, [...cellsAt(strip, place, codes)]]
  })),
}"""


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
    assert before.about == after.about


def test_javascript_reads_what_python_wrote(made: Strip) -> None:
    read = by_javascript(READ, pack_strip(made))
    package = package_of(made)
    assert read["about"] == package.about
    assert read["arrays"].keys() == package.arrays.keys()
    for name, array in package.arrays.items():
        assert read["arrays"][name]["shape"] == list(array.shape)
        values = np.array(read["arrays"][name]["values"], float)  # NaN is null in JSON
        np.testing.assert_array_equal(values, array.ravel().astype(float))
    for place in (0, 300, 600):
        assert read["cells"][str(place)] == made.cells.at(place).ravel().tolist()


def test_a_strip_of_131_thousand_tokens_is_small() -> None:
    """400 kB are allowed, for every preset's kind of bound; the mask, whose cells share no pattern, is most of it."""
    batch = make_record(0, sequences=210, width=1024, noise=0.05).batch
    assert int(batch.response_mask.sum()) > 130_000
    kinds = {"decoupled_token_is": (None, "upper"), "decoupled_geo_rs_token_tis": (0, "band")}
    for name, (rule, side) in kinds.items():
        assert len(pack_strip(strip(batch, preset(name), PLACES, rule=rule, side=side))) <= 400_000


def test_another_version_is_refused(made: Strip, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packing, "VERSION", 3)
    packed = pack_strip(made)
    monkeypatch.undo()
    with pytest.raises(UsageError, match="version 3; this program reads version 2"):
        unpack(packed)


def test_another_dtype_is_refused() -> None:
    with pytest.raises(UsageError, match="float32; a strip holds u1, u2, i4, f8"):
        pack(Package({"x": np.zeros(3, np.float32)}, {}))
