"""Start lines and controls of the studies in the lessons: the control differs from its study in the mismatch alone."""

import sys
from pathlib import Path

import pytest

from rlcorr.records.study import find_study

sys.path.insert(0, str(Path(__file__).resolve().parent.parent.parent / "lessons"))
from study_ends import CONTROLS, control, ends, start

MISMATCH = {
    "decide_stale": {"--rollout.staleness", "8"},
    "decide_cache": {"--rollout.kv-cache-dtype", "fp8_e5m2"},
}
WITHOUT_EFFECT = {"--eval-every"}
"""How often accuracy is measured changes nothing in training. Its value, 60, is the number of steps as well."""


def options(study: str, arm: str) -> set[str]:
    """Return the options of an arm's second seed, which has no sketches, without the name of the run."""
    (trained,) = (one for one in find_study(study).arms if (one.name, one.seed) == (arm, 1))
    return {option for option in trained.options if not option.startswith("study_")}


@pytest.mark.parametrize("study", CONTROLS)
def test_a_control_differs_in_the_mismatch_alone(study: str) -> None:
    assert options(study, "none") - options(CONTROLS[study], "disabled") == MISMATCH[study] | WITHOUT_EFFECT
    assert options(CONTROLS[study], "disabled") <= options(study, "none")


def test_ends_are_those_of_the_table_of_runs() -> None:
    """The numbers of runs/README.md, to two digits."""
    none = ends("decide_stale")["none"]
    assert [round(x, 2) for x in (none.value, none.low, none.high)] == [0.09, 0.03, 0.17]
    assert round(float(control("decide_cache") or 0), 2) == 0.70
    assert round(start("decide_long_cache"), 2) == 0.51
    assert control("decide_long_stale") is None
