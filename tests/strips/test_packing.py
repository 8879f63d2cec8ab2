"""What Python packs, Python and a browser's JavaScript read: every array, bit for bit."""

import numpy as np
import pytest
from app_runs import make_record
from strip_scripts import by_javascript

from rlcorr.bounds import BoundId
from rlcorr.errors import UsageError
from rlcorr.presets import preset
from rlcorr.strips import packing
from rlcorr.strips.packing import Package, arrays_of, pack, unpack
from rlcorr.strips.slider_scale import slider_scale
from rlcorr.strips.strip import Strip, strip

PLACES = slider_scale(1.001, 3.0, of_ratio=True)

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


def packed(made: Strip) -> bytes:
    """The strip with the shapes of its histograms."""
    marks = [bars.marks for bars in (made.weights, made.statistic) if bars is not None]
    return pack(Package(arrays_of(made), {"shapes": marks}))


@pytest.fixture(scope="module")
def made() -> Strip:
    batch = make_record(0, sequences=300, width=40).batch
    return strip(batch, preset("decoupled_geo_rs_token_tis"), PLACES, BoundId(0))


@pytest.fixture(scope="module")
def package(made: Strip) -> Package:
    return Package(arrays_of(made), {"shapes": made.weights.marks, "numbers": {"k3": ["0.1"] * len(PLACES)}})


def test_a_package_comes_back_as_it_was(package: Package) -> None:
    back = unpack(pack(package))
    assert back.arrays.keys() == package.arrays.keys()
    for name, array in package.arrays.items():
        np.testing.assert_array_equal(back.arrays[name], array, strict=True)
    assert back.about == package.about


def test_javascript_reads_what_python_wrote(made: Strip, package: Package) -> None:
    read = by_javascript(READ, pack(package))
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
        assert len(packed(strip(batch, preset(name), PLACES, BoundId(rule, side)))) <= 400_000


def test_another_version_is_refused(package: Package, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packing, "VERSION", 4)
    data = pack(package)
    monkeypatch.undo()
    with pytest.raises(UsageError, match="version 4; this program reads version 3"):
        unpack(data)


def test_another_dtype_is_refused() -> None:
    with pytest.raises(UsageError, match="float32; a strip holds u1, u2, i4"):
        pack(Package({"x": np.zeros(3, np.float32)}, {}))
