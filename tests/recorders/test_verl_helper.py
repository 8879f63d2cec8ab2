"""The drop-in for verl's helper against golden vectors of verl's main, which has the same helper as 0.9.1.

`make peers` compares it with the real helper on random batches.
"""

import importlib
import math
import sys
import types
from pathlib import Path
from typing import Any

import pytest
import torch
from reference import VERL, batch, tensor
from torch import Tensor

from rlcorr.recorders import verl, verl_helper
from rlcorr.recorders.verl_helper import compute_rollout_correction_and_rejection_mask as correct

RELATIVE, ABSOLUTE = 2e-4, 1e-5
# We convert bfloat16 to float32 and a mask of fractions to bools, and raise for a batch without rows.
CASES = sorted(set(VERL["inputs"]) - {"bf16_6x10", "fractional_mask", "zero_length_2x0"})
FIELDS = ("rollout_is", "rollout_is_threshold", "rollout_is_batch_normalize", "rollout_rs", "rollout_rs_threshold")
TABLES = {
    **{name: (VERL["presets"][name], "", cases) for name, cases in VERL["pipeline"].items()},
    **{name: (entry["config"], "rollout_is_", entry["cases"]) for name, entry in VERL["is"].items()},
    **{
        entry["config"]["rollout_rs"]: (entry["config"], "rollout_rs_", entry["cases"]) for entry in VERL["rs"].values()
    },
}
"""Name → verl's options, the start of the metrics that were recorded, and what verl returned for each batch."""


class Proto:
    """The part of verl's DataProto that the helper uses."""

    def __init__(self, tensors: dict[str, Tensor]) -> None:
        self.batch = tensors

    @classmethod
    def from_dict(cls, tensors: dict[str, Tensor]) -> "Proto":
        return cls(tensors)

    def union(self, other: "Proto") -> "Proto":
        return Proto(self.batch | other.batch)


@pytest.fixture(autouse=True)
def protocol(monkeypatch: pytest.MonkeyPatch) -> None:
    module = types.ModuleType("verl.protocol")
    vars(module)["DataProto"] = Proto
    monkeypatch.setitem(sys.modules, "verl.protocol", module)


def given(case: str) -> tuple[Tensor, Tensor, Tensor]:
    tokens = batch(case)
    assert tokens.old_log_probs is not None
    return tokens.old_log_probs, tokens.rollout_log_probs, tokens.response_mask.long()


def unlike(report: dict[str, float], golden: dict[str, Any], start: str = "") -> dict[str, Any]:
    """Return the metrics that differ from verl's. Raise AssertionError if the keys differ."""
    report = {key.removeprefix("rollout_corr/"): value for key, value in report.items()}
    want = {key.removeprefix("rollout_corr/"): float(value) for key, value in golden.items()}
    assert {key for key in report if key.startswith(start)} == want.keys()
    return {key: (report[key], x) for key, x in want.items() if not near(report[key], x, error(key, want))}


def near(got: float, want: float, absolute: float) -> bool:
    return repr(got) == repr(want) or math.isclose(got, want, rel_tol=RELATIVE, abs_tol=absolute)  # repr: NaN, too


def error(key: str, golden: dict[str, float]) -> float:
    """Return the allowed absolute error: verl's E[x²] − E[x]² in float32 has one of about 1e-7·x²."""
    extremes = [abs(golden[key.removesuffix("std") + side]) for side in ("max", "min") if key.endswith("_std")]
    return 1e-3 * max(1.0, *extremes) if extremes else ABSOLUTE


@pytest.mark.parametrize("name", TABLES)
def test_verls_weights_masks_and_metrics(name: str) -> None:
    options, start, table = TABLES[name]
    options, compared = {key: options[key] for key in FIELDS if key in options}, 0
    for case in set(CASES) & set(table):
        golden, (old, rollout, mask) = table[case], given(case)
        if "error" in golden:
            with pytest.raises((ValueError, ZeroDivisionError)) as raised:
                correct(old, rollout, mask, **options)
            assert type(raised.value).__name__ == golden["error"]
            continue
        if not mask.any():
            continue
        weights, kept, report = correct(old, rollout, mask, **options)
        compared += 1
        assert kept.tolist() == golden.get("mask", kept.tolist()), case
        assert unlike(report, golden["metrics"], start) == {}, case
        assert (weights is None) == (golden.get("weights") is None)
        if weights is not None:
            got, want, real = weights.batch["rollout_is_weights"], tensor(golden["weights"]), mask == 1
            torch.testing.assert_close(got[real].float(), want[real], rtol=RELATIVE, atol=ABSOLUTE, equal_nan=True)
            assert not got[~real].any()
    assert compared >= 10


def test_wrong_options_raise_what_verl_raises() -> None:
    errors = [entry for entry in VERL["entry_errors"] if entry.get("error") == "ValueError"]
    recorded = [entry["kwargs"] for entry in errors if "kwargs" in entry]
    differing = [
        {"rollout_is": "token", "rollout_is_threshold": "nan"},  # verl makes every weight NaN
        {"rollout_rs": "token_k2", "rollout_rs_threshold": "inf"},  # verl rejects nothing
    ]
    for options in recorded + differing:
        with pytest.raises(ValueError, match=r"."):
            correct(*given("geo_tight_6x16"), **options)
    x, ones = torch.zeros(2, 3), torch.ones(2, 3)
    other: list[dict[str, Any]]
    other = [{"rollout_is_threshold": True}, {"rollout_rs": "token_k2", "rollout_rs_threshold": [1.0]}]
    for options in other:
        with pytest.raises(TypeError, match="must be a number or text"):
            correct(x, x, ones, "token", **options)
    assert correct(x, x, ones, "token", None)[0] is None
    with pytest.raises(ValueError, match="at least one valid token"):
        correct(x, x, x)
    with pytest.raises(ValueError, match=r"\(2, 3\), another \(2, 4\)"):
        correct(x, torch.zeros(2, 4), ones)


def test_a_batch_of_verl_gets_weights_and_a_mask() -> None:
    """Check r = 1 and e², capped at 2; token_k2 of the second is 2 > 1."""
    old, rollout = torch.tensor([[-1.0, -1.0]]), torch.tensor([[-1.0, -3.0]])
    proto = Proto({"old_log_probs": old, "rollout_log_probs": rollout, "response_mask": torch.ones(1, 2).long()})
    config = {"rollout_is": "token", "rollout_rs": "token_k2", "rollout_rs_threshold": 1.0}
    made, report = verl_helper.compute_rollout_correction_and_add_to_batch(proto, config)
    assert made.batch["rollout_is_weights"].tolist() == [[1.0, 2.0]]
    assert made.batch["response_mask"].tolist() == [[1, 0]]
    assert report["rollout_corr/kl"] == pytest.approx(-1.0)
    assert "rollout_is_weights" not in verl_helper.compute_rollout_correction_and_add_to_batch(proto, {})[0].batch


def test_names_that_the_drop_in_lacks_come_from_verls_helper(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Check a stand-in for verl on the disk: main's score_centering.py imports a private name (commit c6236f51)."""
    monkeypatch.setattr(sys, "modules", {n: m for n, m in sys.modules.items() if n.split(".")[0] != "verl"})
    monkeypatch.setenv(verl.VARIABLE, "helper")
    importlib.reload(verl)
    assert sys.modules[verl.HELPER] is verl_helper
    with pytest.raises(AttributeError, match="verl's own helper is not installed"):
        _ = verl_helper._parse_rollout_is_threshold
    package = tmp_path / "verl" / "trainer" / "ppo"
    package.mkdir(parents=True)
    (package / "rollout_corr_helper.py").write_text("def _parse_rollout_is_threshold(x):\n    return 'verl', x\n")
    (package / "score_centering.py").write_text(
        f"from {verl.HELPER} import SAFETY_BOUND, _parse_rollout_is_threshold\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    centering = importlib.import_module("verl.trainer.ppo.score_centering")
    assert centering._parse_rollout_is_threshold(2.0) == ("verl", 2.0)
    with pytest.raises(AttributeError, match="nowhere"):
        _ = verl_helper.nowhere
    assert sys.modules[verl.HELPER] is verl_helper
    verl_helper._verls_own.cache_clear()
