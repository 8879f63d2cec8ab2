"""What is compress comes back as it was, in Python and in a browser's JavaScript, and repeats nothing."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from strip_scripts import by_javascript

from rlcorr.strips.json_columns import compress, expand
from rlcorr.strips.packing import Package, pack

LEAVES = st.none() | st.booleans() | st.integers(-5, 5) | st.floats(allow_nan=False) | st.text("abc", max_size=4)
KEYS = st.sampled_from(["x0", "x1", "label"])
LISTED = st.recursive(LEAVES, lambda of: st.lists(of, max_size=12) | st.dictionaries(KEYS, of), max_leaves=30)


@given(st.dictionaries(KEYS, LISTED))
def test_everything_comes_back(about: dict[str, Any]) -> None:
    back = expand(json.loads(json.dumps(compress(about))))
    assert json.dumps(back) == json.dumps(about)


def lines(place: int) -> list[dict[str, Any]]:
    """A line that moves, with a note, and one that does not."""
    return [{"type": "line", "x0": place / 2, "label": {"text": f"{place} of 9"}}, {"type": "line", "x0": 1}]


@pytest.mark.parametrize(
    ("about", "once"),
    [
        ({"shapes": [lines(place) for place in range(20)]}, ["type", "x0", "text", " of 9"]),
        ({"texts": [f"weights above {place} become {place}" for place in range(20)]}, ["weights above "]),
        ({"same": [["a lone text"]] * 20}, ["a lone text"]),
    ],
)
def test_what_repeats_is_written_once_and_javascript_reads_it(about: dict[str, Any], once: list[str]) -> None:
    written = json.dumps(compress(about))
    assert all(written.count(text) <= 2 for text in once)  # of both lines
    assert by_javascript("strip.about", pack(Package({}, about))) == about
