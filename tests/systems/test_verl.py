"""verl's configurations: our thresholds, errors, presets, masks and weights against those of verl itself."""

import math
from dataclasses import dataclass
from typing import Any

import oracle
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from reference import VERL, row, rule

from rlcorr.config import CorrectionConfig
from rlcorr.correction import correct
from rlcorr.errors import UsageError
from rlcorr.systems.verl.config import from_verl, to_verl
from rlcorr.systems.verl.thresholds import dotted, inverse

# --- verl: thresholds, names, errors ---

# Texts that verl accepts and we refuse; a test below gives the reason for each.
NOT_A_NUMBER = {"0.5_2_0", "nan"}


@pytest.mark.parametrize("entry", VERL["threshold_parsing"]["is"], ids=lambda e: repr(e["spec"]))
def test_verl_weight_threshold(entry: dict[str, Any]) -> None:
    mapping = {"rollout_is": "token", "rollout_is_threshold": entry["spec"]}
    if "error" in entry or entry["spec"] in NOT_A_NUMBER:
        with pytest.raises(UsageError, match="rollout_is_threshold"):
            from_verl(mapping)
        return
    upper, lower = entry["result"]
    config = from_verl(mapping)
    assert config.rollout_is_threshold == float(upper)
    assert config.rollout_is_threshold_lower == lower
    assert config.rollout_is_mode == ("truncate" if lower is None else "mask")


@pytest.mark.parametrize("entry", VERL["threshold_parsing"]["rs"], ids=lambda e: f"{e['options']}-{e['spec']!r}")
def test_verl_rejection_threshold(entry: dict[str, Any]) -> None:
    """Check bounds: verl's k1 bounds [a, b] are on 1/r, so ours are [1/b, 1/a]; k2 and k3 have only an upper bound."""
    mapping = {"rollout_rs": ",".join(entry["options"]), "rollout_rs_threshold": entry["spec"]}
    if "error" in entry or entry["spec"] in NOT_A_NUMBER or entry["spec"] == "inf":
        with pytest.raises(UsageError):
            from_verl(mapping)
        return
    rules = from_verl(mapping).rollout_rs
    assert [rule.name for rule in rules] == entry["options"]
    for got in rules:
        lower, upper = (entry["result"][got.name][side] for side in ("lower", "upper"))
        if got.divergence == "k1":
            lower, upper = 1 / float(upper) or None, 1 / float(lower)
        assert got.lower == (None if lower is None else pytest.approx(lower, rel=1e-15))
        assert got.upper == pytest.approx(upper, rel=1e-15)


def test_what_verl_takes_and_we_refuse() -> None:
    """verl splits "0.5_2_0" at the first "_", and Python reads "2_0" as 20; NaN bounds give NaN weights, or reject
    everything; a k2 bound of infinity rejects nothing; on k1, 0 divides by zero, and "abc" and True fail in float()."""
    weights = {repr(e["spec"]): e["result"] for e in VERL["threshold_parsing"]["is"] if "result" in e}
    assert (weights["'0.5_2_0'"], weights["'nan'"]) == ([20, 0.5], ["nan", None])
    of_rules = {
        (e["options"][0], repr(e["spec"])): e for e in VERL["threshold_parsing"]["rs"] if len(e["options"]) == 1
    }
    assert of_rules["token_k2", "'inf'"]["result"]["token_k2"]["upper"] == "inf"
    died = {"0": "ZeroDivisionError", "'abc'": "ValueError", "True": "ValueError"}
    assert {spec: of_rules["token_k1", spec]["error"] for spec in died} == died
    for level, spec, message in (
        ("token", "0.5_2_0", r"lower_upper.*got '0.5_2_0'"),
        ("sequence", "nan", "must be > 0; got nan"),
    ):
        with pytest.raises(UsageError, match=message):
            from_verl({"rollout_is": level, "rollout_is_threshold": spec})
    for name, spec, message in (
        ("token_k1", "nan", "finite and ≥ 1; got nan"),
        ("seq_max_k2", "nan", "must be > 0; got nan"),
        ("token_k2", "inf", "token_k2 has no bound"),
        *(("token_k1", spec, "rollout_rs_threshold of token_k1") for spec in (0, "abc", True)),
    ):
        with pytest.raises(UsageError, match=message):
            from_verl({"rollout_rs": name, "rollout_rs_threshold": spec})


ENTRIES = [entry["kwargs"] for entry in VERL["entry_errors"] if "error" in entry and "kwargs" in entry]


@pytest.mark.parametrize("mapping", [e for e in ENTRIES if e.get("rollout_rs") != "binary_kl"], ids=repr)
def test_verl_entry_errors(mapping: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        from_verl(mapping)


def test_binary_kl_is_read_as_in_pull_request_6800() -> None:
    mapping = {"rollout_rs": "binary_kl", "rollout_rs_threshold": 2.0}
    assert mapping in ENTRIES  # verl main does not know it
    assert from_verl(mapping).rollout_rs == (rule("token_binary_kl", upper=2.0),)


def test_yaml_eats_verls_underscore_and_nobody_can_see_it() -> None:
    """Check an unquoted 0.5_2: it becomes a cap of 0.52, but a band of 0.5 to 2 was meant. Two dots make it text."""
    mapping = yaml.safe_load("{rollout_is: token, rollout_is_threshold: 0.5_2}")
    assert mapping["rollout_is_threshold"] == 0.52
    config = from_verl(mapping)
    assert (config.rollout_is_threshold, config.rollout_is_mode) == (0.52, "truncate")
    config = from_verl(yaml.safe_load("{rollout_is: token, rollout_is_threshold: 0.5_2.0}"))
    assert (config.rollout_is_threshold_lower, config.rollout_is_threshold, config.rollout_is_mode) == (
        0.5,
        2.0,
        "mask",
    )


@dataclass
class RolloutCorrectionConfig:
    """The fields and defaults of verl's class of that name; `make peers` reads the real one."""

    _target_: str = ""
    rollout_is: str | None = "sequence"
    rollout_is_threshold: str | float = 2.0
    rollout_is_batch_normalize: bool = False
    rollout_rs: str | None = None
    rollout_rs_threshold: str | float | None = None
    bypass_mode: bool = False
    loss_type: str = "ppo_clip"


def test_verls_own_object_is_read_like_its_mapping() -> None:
    """Check the defaults in verl.md: sequence weights truncated at 2. Options that are given twice count once."""
    for written in VERL["presets"].values():
        assert from_verl(RolloutCorrectionConfig(**written)) == from_verl(written)
    assert from_verl(RolloutCorrectionConfig()) == CorrectionConfig(rollout_is="sequence", rollout_is_threshold=2.0)
    written = {"_target_": "verl.trainer.config.RolloutCorrectionConfig", "rollout_is": "token"}
    assert from_verl(written) == CorrectionConfig(rollout_is="token")
    twice = {"rollout_rs": "token_k2, token_k2,", "rollout_rs_threshold": "0.5"}
    assert from_verl(twice).rollout_rs == (rule("token_k2", upper=0.5),)


# --- verl: what was configured is what is applied ---


def test_verl_presets_come_back() -> None:
    """`tests/test_correction_golden.py` compares the weights and masks of what is read with verl's."""
    for name, written in VERL["presets"].items():
        assert to_verl(from_verl(written)) == written, name


def test_k1_bounds_act_on_the_inverse_ratio() -> None:
    """Check bounds 0.6 and 1.4: verl keeps r in [1/1.4, 1/0.6] = [0.714, 1.667], so 1.5, not 0.65."""
    config = from_verl({"rollout_rs": "token_k1", "rollout_rs_threshold": "0.6_1.4"})
    assert (config.rollout_rs[0].lower, config.rollout_rs[0].upper) == pytest.approx((0.7142857, 1.6666667))
    assert correct(row(1.5, 0.65), config).keep_mask.tolist() == [[True, False]]


# --- verl: written ---


def test_verl_text() -> None:
    """Check the text: 1/0.8 = 1.25 and 1/2 = 0.5; without a lower bound on r, verl's upper one is infinite."""
    config = CorrectionConfig(
        rollout_is="token",
        rollout_is_threshold=5,
        rollout_is_threshold_lower=1e-5,
        rollout_is_mode="mask",
        rollout_rs=(
            rule("token_k1", 0.8, 2.0),
            rule("seq_sum_k1", upper=4.0),
            rule("seq_mean_k3", upper=0.01),
        ),
    )
    assert to_verl(config) == {
        "rollout_is": "token",
        "rollout_is_threshold": "1.0e-05_5.0",
        "rollout_is_batch_normalize": False,
        "rollout_rs": "token_k1,seq_sum_k1,seq_mean_k3",
        "rollout_rs_threshold": "0.5_1.25,0.25_inf,0.01",
        "bypass_mode": False,
        "loss_type": "ppo_clip",
    }
    assert from_verl(to_verl(config)) == config
    unbounded = CorrectionConfig(rollout_is="token", rollout_is_threshold=math.inf)
    assert to_verl(unbounded)["rollout_is_threshold"] == "inf"
    assert from_verl(to_verl(unbounded)) == unbounded


@oracle.examples(300)
@given(st.floats(1e-300, 1e300), st.floats(1e-300, 1e300))
def test_a_pair_of_bounds_is_never_a_yaml_number(lower: float, upper: float) -> None:
    """Check the dots in pairs: repr(1e16) is 1e+16, and YAML reads 0.5_1e+16 as one number."""
    assert yaml.safe_load("0.5_1e+16") == 0.51e16
    text = f"{dotted(lower)}_{dotted(upper)}"
    assert yaml.safe_load(text) == text
    assert [float(part) for part in text.split("_")] == [lower, upper]


def test_inverse_gives_back_the_digits_that_were_written() -> None:
    assert [inverse(1 / x) for x in (0.999, 1.001, 0.6, 1.4, 3.0, 7.0)] == [0.999, 1.001, 0.6, 1.4, 3.0, 7.0]
