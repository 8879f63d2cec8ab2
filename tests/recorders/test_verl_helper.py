"""The drop-in for verl's helper against golden vectors of verl's main, which has the same helper as 0.9.1.

`make peers` runs verl's own tests on the drop-in, and compares it value by value with the real helper.
"""

import importlib
import math
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from reference import VERL, tensor
from torch import Tensor

from rlcorr.recorders import verl_helper, verl_plugin
from rlcorr.systems.verl.thresholds import NO_BOUND, rejection_rules

ABSOLUTE, RELATIVE = 1e-5, 2e-4
# We convert bfloat16 to float32 and a mask of fractions to bools, and raise for a batch without rows.
UNLIKE = {"bf16_6x10", "fractional_mask", "zero_length_2x0"}
CASES = sorted(set(VERL["inputs"]) - UNLIKE)


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
    entry = VERL["inputs"][case]
    shape = entry["shape"]
    old, rollout = (tensor(entry[name]).reshape(shape) for name in ("old_log_prob", "rollout_log_prob"))
    return old, rollout, tensor(entry["mask"]).reshape(shape).long()


def near(got: float, want: Any) -> bool:
    want = float(want)
    return got == want or (math.isnan(got) and math.isnan(want)) or math.isclose(
        got, want, rel_tol=RELATIVE, abs_tol=ABSOLUTE
    )  # fmt: skip


def unlike(report: dict[str, float], golden: dict[str, Any]) -> dict[str, Any]:
    """Return the metrics that differ from verl's. Raise AssertionError if the keys differ."""
    report = {key.removeprefix("rollout_corr/"): value for key, value in report.items()}
    golden = {key.removeprefix("rollout_corr/"): value for key, value in golden.items()}
    assert report.keys() == golden.keys()
    different = {key: (value, golden[key]) for key, value in report.items() if not near(value, golden[key])}
    return {key: pair for key, pair in different.items() if not (key.endswith("_std") and rounding(key, golden, *pair))}


def rounding(key: str, golden: dict[str, Any], got: float, want: float) -> bool:
    """Check whether a difference is verl's rounding: its E[x²] − E[x]² in float32 has an error of about 1e-7·x²."""
    largest = max(abs(float(golden[key.removesuffix("std") + side])) for side in ("max", "min", "mean"))
    return abs(got - want) <= 1e-3 * max(1.0, largest)


@pytest.mark.parametrize("name", VERL["presets"])
def test_every_preset_gives_verls_weights_masks_and_metrics(name: str) -> None:
    fields = ("rollout_is", "rollout_is_threshold", "rollout_is_batch_normalize", "rollout_rs", "rollout_rs_threshold")
    options = {key: VERL["presets"][name][key] for key in fields}
    compared = 0
    for case in set(CASES) & set(VERL["pipeline"][name]):
        golden = VERL["pipeline"][name][case]
        old, rollout, mask = given(case)
        if "error" in golden:
            with pytest.raises((ValueError, ZeroDivisionError)) as raised:
                verl_helper.compute_rollout_correction_and_rejection_mask(old, rollout, mask, **options)
            assert type(raised.value).__name__ == golden["error"]
            continue
        weights, kept, report = verl_helper.compute_rollout_correction_and_rejection_mask(old, rollout, mask, **options)
        compared += 1
        assert kept.tolist() == golden["mask"], case
        real = mask.bool()
        if golden["weights"] is None:
            assert weights is None
        else:
            torch.testing.assert_close(
                weights.batch["rollout_is_weights"][real],
                tensor(golden["weights"])[real],
                rtol=RELATIVE,
                atol=ABSOLUTE,
                equal_nan=True,
            )
        assert unlike(report, golden["metrics"]) == {}, case
    assert compared >= 18


@pytest.mark.parametrize("options", VERL["is"])
def test_weights_alone(options: str) -> None:
    config = VERL["is"][options]["config"]
    for case in set(CASES) & set(VERL["is"][options]["cases"]):
        golden = VERL["is"][options]["cases"][case]
        old, rollout, mask = given(case)
        if "error" in golden or not mask.any():
            continue
        weights, _, report = verl_helper.compute_rollout_correction_and_rejection_mask(old, rollout, mask, **config)
        real, got = mask.bool(), weights.batch["rollout_is_weights"]
        torch.testing.assert_close(
            got[real], tensor(golden["weights"])[real], rtol=RELATIVE, atol=ABSOLUTE, equal_nan=True
        )
        assert unlike(starting_with("rollout_is_", report), golden["metrics"]) == {}, case


@pytest.mark.parametrize("options", VERL["rs"])
def test_rejection_alone(options: str) -> None:
    config = VERL["rs"][options]["config"]
    for case in set(CASES) & set(VERL["rs"][options]["cases"]):
        golden = VERL["rs"][options]["cases"][case]
        old, rollout, mask = given(case)
        if "error" in golden or not mask.any():
            continue
        _, kept, report = verl_helper.compute_rollout_correction_and_rejection_mask(old, rollout, mask, **config)
        assert kept.tolist() == golden["mask"], case
        assert unlike(starting_with("rollout_rs_", report), golden["metrics"]) == {}, case


def starting_with(start: str, report: dict[str, float]) -> dict[str, float]:
    """Return the metrics of the weights, or of the rules."""
    return {key: value for key, value in report.items() if key.startswith(f"rollout_corr/{start}")}


@pytest.mark.parametrize("case", sorted(set(CASES) & set(VERL["offpolicy_metrics"])))
def test_offpolicy_metrics(case: str) -> None:
    golden = VERL["offpolicy_metrics"][case]
    old, rollout, mask = given(case)
    if "error" in golden:
        with pytest.raises(AssertionError):
            verl_helper.compute_offpolicy_metrics(old, rollout, mask)
        return
    assert unlike(verl_helper.compute_offpolicy_metrics(old, rollout, mask), golden.get("metrics", golden)) == {}
    alone = verl_helper.compute_offpolicy_metrics(old, None, mask)
    assert alone.keys() == {"training_ppl", "training_log_ppl"}
    prefixed = verl_helper.compute_rollout_corr_metrics_from_logprobs(old, rollout, mask)
    assert {key.split("/")[0] for key in prefixed} == {"rollout_corr"}


@pytest.mark.parametrize(
    "entry",
    [e for e in VERL["entry_errors"] if "kwargs" in e and "'nan'" not in repr(e["kwargs"])],
    ids=lambda e: repr(e["kwargs"])[:60],
)
def test_wrong_options_raise_what_verl_raises(entry: dict[str, Any]) -> None:
    old, rollout, mask = given("geo_tight_6x16")
    if "error" not in entry:
        weights, _, report = verl_helper.compute_rollout_correction_and_rejection_mask(
            old, rollout, mask, **entry["kwargs"]
        )
        assert (weights is None) == entry["weights_is_none"]
        assert len(report) == entry["n_metrics"]
        return
    kind = {"ValueError": ValueError, "TypeError": TypeError, "AttributeError": AttributeError}[entry["error"]]
    with pytest.raises(kind):
        verl_helper.compute_rollout_correction_and_rejection_mask(old, rollout, mask, **entry["kwargs"])


def test_a_threshold_of_nan_is_refused_where_verl_makes_every_weight_nan() -> None:
    golden = next(e for e in VERL["entry_errors"] if "'nan'" in repr(e.get("kwargs")))
    assert golden["weights_nan"]
    zeros = torch.zeros(1, 1)
    with pytest.raises(ValueError, match="must be positive"):
        verl_helper.compute_rollout_correction_and_rejection_mask(zeros, zeros, torch.ones(1, 1), **golden["kwargs"])


def test_shapes_and_empty_masks_raise() -> None:
    x = torch.zeros(2, 3)
    with pytest.raises(ValueError, match="at least one valid token"):
        verl_helper.compute_rollout_correction_and_rejection_mask(x, x, torch.zeros(2, 3))
    with pytest.raises(ValueError, match=r"\(2, 3\), another \(2, 4\)"):
        verl_helper.compute_rollout_correction_and_rejection_mask(x, torch.zeros(2, 4), torch.ones(2, 3))
    with pytest.raises(TypeError, match="not a boolean"):
        verl_helper.compute_rollout_correction_and_rejection_mask(x, x, torch.ones(2, 3), "token", True)


def test_an_error_of_the_weights_comes_before_one_of_the_rules() -> None:
    """Check a pair of bounds that sets every weight to 0: verl's effective sample size then divides by 0."""
    zeros, mask = torch.zeros(1, 2), torch.ones(1, 2)
    correct = verl_helper.compute_rollout_correction_and_rejection_mask
    with pytest.raises(ZeroDivisionError):
        correct(zeros, zeros, mask, "token", "2_3", rollout_rs="token_k4", rollout_rs_threshold=1.0)
    with pytest.raises(ValueError, match="token_k4"):
        correct(zeros, zeros, mask, "token", "0.5_3", rollout_rs="token_k4", rollout_rs_threshold=1.0)


def test_a_batch_of_verl_gets_weights_and_a_mask() -> None:
    """Check r = 1 and e², capped at 2; token_k2 of the second is 2 > 1."""
    old, rollout = torch.tensor([[-1.0, -1.0]]), torch.tensor([[-1.0, -3.0]])
    batch = Proto({"old_log_probs": old, "rollout_log_probs": rollout, "response_mask": torch.ones(1, 2).long()})
    config = {"rollout_is": "token", "rollout_rs": "token_k2", "rollout_rs_threshold": 1.0}
    made, report = verl_helper.compute_rollout_correction_and_add_to_batch(batch, config)
    assert made.batch["rollout_is_weights"].tolist() == [[1.0, 2.0]]
    assert made.batch["response_mask"].tolist() == [[1, 0]]
    assert report["rollout_corr/kl"] == pytest.approx(-1.0)
    only, _ = verl_helper.compute_rollout_correction_and_add_to_batch(batch, {})
    assert "rollout_is_weights" not in only.batch


def test_an_infinite_bound_rejects_nothing() -> None:
    assert rejection_rules("token_k2", "inf")[0].upper == NO_BOUND
    log_ratio, mask = torch.tensor([[0.0, 30.0]]), torch.ones(1, 2)
    options: dict[str, Any] = {"rollout_rs": "token_k1", "rollout_rs_threshold": "0.5_inf"}
    correct = verl_helper.compute_rollout_correction_and_rejection_mask
    assert correct(log_ratio, torch.zeros(1, 2), mask, **options)[1].tolist() == [[1, 0]]


def test_the_plugin_does_nothing_until_it_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, verl_plugin.HELPER, raising=False)
    assert verl_plugin.install("") == []
    assert verl_plugin.HELPER not in sys.modules
    assert "known: helper" in verl_plugin.install("hepler")[0]
    assert verl_plugin.HELPER not in sys.modules
    monkeypatch.setitem(sys.modules, verl_plugin.HELPER, types.ModuleType("verl's own"))
    assert verl_plugin.install("helper") == []
    assert sys.modules[verl_plugin.HELPER] is verl_helper


OWN = "def _parse_rollout_is_threshold(threshold):\n    return 'verl', threshold\n\nnew_in_main = 8010\n"


@pytest.fixture
def modules(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Any]]:
    """sys.modules without verl and its parts, and without what the test imports afterwards."""
    monkeypatch.setattr(sys, "modules", {n: m for n, m in sys.modules.items() if n.split(".")[0] != "verl"})
    verl_helper._verls_own.cache_clear()
    yield sys.modules
    verl_helper._verls_own.cache_clear()


def test_names_that_the_drop_in_lacks_come_from_verls_own_helper(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, modules: dict[str, Any]
) -> None:
    """Check a stand-in for verl on the disk: main's score_centering.py imports a private name (commit c6236f51)."""
    package = tmp_path / "verl" / "trainer" / "ppo"
    package.mkdir(parents=True)
    for folder in (package, package.parent, package.parent.parent):
        (folder / "__init__.py").touch()
    (package / "rollout_corr_helper.py").write_text(OWN)
    (package / "score_centering.py").write_text(
        "from verl.trainer.ppo.rollout_corr_helper import SAFETY_BOUND, _parse_rollout_is_threshold\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    modules[verl_plugin.HELPER] = verl_helper
    centering = importlib.import_module("verl.trainer.ppo.score_centering")
    assert centering._parse_rollout_is_threshold(2.0) == ("verl", 2.0)
    assert centering.SAFETY_BOUND == verl_helper.SAFETY_BOUND
    assert verl_helper.new_in_main == 8010
    with pytest.raises(AttributeError, match="nowhere"):
        _ = verl_helper.nowhere
    assert modules[verl_plugin.HELPER] is verl_helper


def test_without_verl_an_unknown_name_is_an_attribute_error(modules: dict[str, Any]) -> None:
    modules["verl"] = None
    with pytest.raises(AttributeError, match="verl's own helper is not installed"):
        _ = verl_helper._parse_rollout_is_threshold
    assert not hasattr(verl_helper, "__wrapped__")
