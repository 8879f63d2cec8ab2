"""verl's presets against verl's own, the numbers of all, and what they do."""

import json
import re
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import torch
from reference import VERL, config

from rlcorr.config import CorrectionConfig, LossConfig
from rlcorr.correction import correct
from rlcorr.errors import UsageError
from rlcorr.presets import PRESETS, preset
from rlcorr.systems.verl.config import to_verl
from rlcorr.types import TokenBatch

GOLDEN = json.loads((Path(__file__).parent.parent / "support" / "golden" / "presets.json").read_text(encoding="utf-8"))
"""Name → the fields of its correction and of its loss that are not default, as the library had them in commit dc1e367.
There a test had the numbers once more, typed from the sources: this file only notices a change."""


def changed(made: CorrectionConfig | LossConfig) -> dict[str, Any]:
    default = asdict(type(made)())
    return {name: x for name, x in asdict(made).items() if x != default[name]}


def test_numbers_of_every_preset() -> None:
    """verl's "0.999_1.001" keeps r in [1/1.001, 1/0.999] = [0.999001, 1.001001]: `config` inverts the bounds."""
    numbers = {name: [changed(given.config), changed(given.loss)] for name, given in PRESETS.items()}
    assert json.loads(json.dumps(numbers)) == GOLDEN
    assert sorted(list(PRESETS)[:19]) == sorted(VERL["presets"])
    for name, theirs in VERL["presets"].items():
        assert preset(name) == config(theirs), name
        assert to_verl(preset(name)) == theirs, name


def test_a_preset_names_its_system_its_source_and_its_failure() -> None:
    """A picker groups presets of one system, which must be neighbours."""
    systems = [given.system for given in PRESETS.values()]
    starts = [system for system, before in zip(systems, [None, *systems], strict=False) if system != before]
    assert len(starts) == len(set(starts)) == 16
    for name, given in PRESETS.items():
        assert name.startswith(given.system.lower().replace("-", "_").replace(" ", "_")) or given.system == "verl", name
        assert re.search(r"[0-9a-f]{7,8}\b|pull request|arXiv:|\d\.\d+\.\d|nightly", given.source), name
        assert given.fails_when, name
        assert not given.fails_when.endswith("."), f"{name}: the views add the full stop"
        assert all(rule.name in given.config.explain() for rule in given.config.rollout_rs), name
    with pytest.raises(UsageError, match=r"unknown preset 'decoupled_token_si'. Did you mean 'decoupled_token_is'"):
        preset("decoupled_token_si")


# What they do, on numbers that can be checked by hand.


def batch(old: list[list[float]], rollout: list[list[float]], advantages: list[list[float]]) -> TokenBatch:
    """Probabilities, not logarithms."""
    p, q, a = (torch.tensor(x, dtype=torch.float64) for x in (old, rollout, advantages))
    return TokenBatch.from_log_probs(p.log(), q.log(), torch.ones_like(p)).replace(advantages=a)


def test_prime_rl_drops_what_moves_away() -> None:
    """π − μ = 0.3, 0.3, −0.3, −0.3, 0.15: with A > 0 it may not be above 0.2, with A < 0 not below −0.2."""
    given = batch([[0.5, 0.5, 0.2, 0.2, 0.35]], [[0.2, 0.2, 0.5, 0.5, 0.2]], [[1.0, -1.0, 1.0, -1.0, 1.0]])
    result = correct(given, preset("prime_rl_dppo"))
    assert result.keep_mask.tolist() == [[False, True, True, False, True]]
    # Its loss −A·r has the gradient −A·r·∇log π: the weight is r, without a bound.
    assert result.weights.tolist()[0] == pytest.approx([2.5, 2.5, 0.4, 0.4, 1.75])
    assert correct(given, preset("prime_rl_ipo_2026_08")).keep_mask.tolist() == [[False] * 5]


@pytest.mark.parametrize(("name", "delta"), [("slime_opsm", 1e-4), ("trl_opsm", 0.5)])
def test_opsm_drops_failures_that_the_trainer_finds_less_likely(name: str, delta: float) -> None:
    """Mean log μ − log π of 1.1 δ and 0.9 δ; with A > 0 nothing is dropped."""
    q = torch.full((3, 2), -2.0, dtype=torch.float64)
    p = q - delta * torch.tensor([[0.2, 2.0], [0.0, 1.8], [0.2, 2.0]], dtype=torch.float64)
    given = TokenBatch.from_log_probs(p, q, torch.ones(3, 2)).replace(
        advantages=torch.tensor([[-1.0, -1.0], [-1.0, -1.0], [1.0, 1.0]])
    )
    assert correct(given, preset(name)).keep_mask.tolist() == [[False] * 2, [True] * 2, [True] * 2]


def test_sequence_masks_of_the_same_name_differ() -> None:
    """Ratios 3.9 and 1, geometric mean 1.9748. TRL masks the product at 3; ms-swift the geometric mean at 2, and keeps
    the ratios; AReaL the product at 5, and weighs with the geometric mean."""
    given = batch([[0.39, 0.1]], [[0.1, 0.1]], [[1.0, 1.0]])
    assert correct(given, preset("trl_sequence_mask")).weights.tolist() == [[0.0, 0.0]]
    swift = correct(given, preset("ms_swift_sequence_mask"))
    assert swift.weights.tolist()[0] == pytest.approx([3.9, 1.0])
    assert swift.keep_mask.all()
    areal = correct(given, preset("areal_sequence_mask"))
    assert areal.weights.tolist()[0] == pytest.approx([1.9748418, 1.9748418])
    assert areal.keep_mask.all()


@pytest.mark.parametrize(
    ("name", "ratios", "advantages", "weights"),
    [
        # unsloth's pull request 9309 tests its own function with these ratios and ε of 0.3 and 5. It drops 0.7 and 6 as
        # well, which are exactly on the bounds. A token with weight 0 still counts in the denominator.
        ("sao_reasoning", [0.5, 1.0, 3.0, 0.69, 6.01], 1.0, [0.0, 1.0, 3.0, 0.0, 0.0]),
        ("sao_coding", [0.5, 1.0, 3.0, 0.69, 6.01], 1.0, [0.5, 1.0, 3.0, 0.69, 0.0]),
        # VACO: |r − 1| is 1.25 on average, below 2. Then it is 3, and what moves further away goes.
        ("open_instruct_vaco", [0.25, 1.0, 4.0], 1.0, [0.25, 1.0, 2.0]),
        ("open_instruct_vaco", [4.0, 4.0, 4.0], 1.0, None),
        ("open_instruct_vaco", [4.0, 4.0, 4.0], -1.0, [2.0, 2.0, 2.0]),
        # A mean of multiplicative errors depends on one token: e^|d| of 10 and nine of 1 has mean 1.9, with 11.5 2.05.
        ("nemo_rl_seq_logprob_error", [0.1, *[1.0] * 9], 1.0, [1.0] * 10),
        ("nemo_rl_seq_logprob_error", [1 / 11.5, *[1.0] * 9], 1.0, None),
    ],
)
def test_weights_of_one_sequence(
    name: str, ratios: list[float], advantages: float, weights: list[float] | None
) -> None:
    """None: the rule rejects it."""
    result = correct(
        batch([[0.1 * r for r in ratios]], [[0.1] * len(ratios)], [[advantages] * len(ratios)]), preset(name)
    )
    assert result.keep_mask.tolist() == [[weights is not None] * len(ratios)]
    assert weights is None or result.weights.tolist()[0] == pytest.approx(weights)
