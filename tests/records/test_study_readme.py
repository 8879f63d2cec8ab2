"""What runs/README.md says of the studies, computed again from their tables."""

import math
import statistics
from collections.abc import Callable, Sequence
from functools import cache
from statistics import fmean
from typing import Any

import pytest

from rlcorr.gradients.bootstrap import Interval
from rlcorr.records import runs, study
from rlcorr.records.study_comparisons import against_chance, against_nothing, progress_correlation

README = (runs.ROOT / "README.md").read_text(encoding="utf-8")
WORDS = " ".join(README.split())
FIRST, EARLIER, LAST = range(1, 7), range(13, 19), range(19, 25)
Values = list[float]
"""One number per seed."""


@cache
def runs_of(name: str, arm: str) -> list[list[dict[str, Any]]]:
    """Return the rows of each seed of an arm."""
    rows = [row for row in study.read_study(name)[0] if row["preset"] == arm]
    return [[row for row in rows if row["seed"] == seed] for seed in dict.fromkeys(row["seed"] for row in rows)]


def rewards(name: str, arm: str, steps: Sequence[int]) -> Values:
    return [fmean(row["reward"] for row in run if row["step"] in steps) for run in runs_of(name, arm)]


def accuracy(name: str, arm: str) -> Values:
    return [run[-1]["accuracy"] for run in runs_of(name, arm)]


def gain(name: str, arm: str) -> Values:
    """Return the mean reward of the last six steps minus that of the first six."""
    mean = [[fmean(row["reward"] for row in part) for part in (run[-6:], run[:6])] for run in runs_of(name, arm)]
    return [last - first for last, first in mean]


def minus(one: Values, other: Values) -> str:
    """Mean and 95 % interval of five paired differences, or ten: t(0.975; 4) = 2.776445, t(0.975; 9) = 2.262157."""
    differences = [a - b for a, b in zip(one, other, strict=True)]
    count, mean = len(differences), fmean(differences)
    half = {5: 2.776445, 10: 2.262157}[count] * statistics.stdev(differences) / count**0.5
    return f"{mean:.3f} [{mean - half:.3f}, {mean + half:.3f}]"


def against(of: Callable[[str, str], Values], name: str, arm: str, *others: str) -> list[str]:
    """Return the first cells of a row: the mean of an arm, and its paired differences from other arms."""
    return [
        f"{fmean(of(name, arm)):.2f}",
        *("–" if arm == other else minus(of(name, arm), of(name, other)) for other in others),
    ]


def means(name: str, arm: str, *parts: Sequence[int]) -> str:
    return ", ".join(f"{fmean(rewards(name, arm, steps)):.2f}" for steps in parts)


def over_all_steps(name: str, arm: str) -> Values:
    return rewards(name, arm, range(1, 21))


TABLES: dict[str, Callable[[str, str], list[str]]] = {
    "smol_stale_6": lambda name, arm: [*against(gain, name, arm, "none", "fresh"), means(name, arm, FIRST, LAST)],
    "smol_e5m2": lambda name, arm: [
        *against(gain, name, arm, "none", "fresh_cache"),
        means(name, arm, FIRST, LAST),
        f"{fmean(accuracy(name, arm)):.2f}",
    ],
    "smol_centering_stale": lambda name, arm: [
        *against(gain, name, arm, "none", "token_cap"),
        means(name, arm, range(11, 19), LAST),
    ],
    "smol_precision": lambda name, arm: [
        *against(gain, name, arm, "none"),
        *against(over_all_steps, name, arm, "none"),
        means(name, arm, [1], [7], [20]),
        f"{fmean(accuracy(name, arm)):.2f}",
    ],
    "smol_last_weights": lambda name, arm: [
        *against(accuracy, name, arm, "none", "fresh"),
        means(name, arm, LAST),
    ],
}
"""Study → the cells of the row of an arm, after its name."""


@pytest.mark.parametrize("name", TABLES)
def test_the_table_of_a_study(name: str) -> None:
    for arm in {row["preset"] for row in study.read_study(name)[0]}:
        assert f"| `{arm}` | {' | '.join(TABLES[name](name, arm))} |" in WORDS


@pytest.mark.parametrize("name", ["smol_stale_6", "smol_last_weights"])
def test_the_table_of_the_delay(name: str) -> None:
    """Check the rewards of the last six steps beside those of the control at the same step, and six steps earlier."""
    for arm in {row["preset"] for row in study.read_study(name)[0]} - {"fresh"}:
        cells = [minus(rewards(name, arm, LAST), rewards(name, "fresh", steps)) for steps in (LAST, EARLIER)]
        assert f"`{arm}` | {' | '.join(cells)} |" in README, (arm, cells)


def test_the_table_of_the_small_models() -> None:
    """Check the table, and the sentences that summarise several rows."""
    stale, coarse = (study.outcomes(study.read_study(name)[0]) for name in ("stale_8", "kv_fp8_e5m2"))
    second = {outcome.preset: outcome for outcome in coarse}
    for outcome in stale:
        cells = [f"`{outcome.preset}`"]
        for result in (outcome, second[outcome.preset]):
            cells += [in_range(result.reward), f"{result.kept_fraction.mean:.0%}"]
        assert f"| {' | '.join(cells)} |".replace("%", " %") in README
    assert stale[0].preset == coarse[0].preset == "decoupled_seq_is"
    start = fmean(row["reward"] for row in study.read_study("kv_fp8_e5m2")[0] if row["step"] == 1)
    assert [outcome.preset for outcome in coarse if outcome.reward.lowest > start] == ["decoupled_seq_is"]
    for name in ("stale_0", "kv_bf16"):
        assert in_range(study.outcomes(study.read_study(name)[0])[0].reward) in WORDS
    for name, significant in (("stale_8", ["decoupled_token_icepop"]), ("kv_fp8_e5m2", [])):
        pairs = against_nothing(study.read_study(name)[0])
        assert [pair.arm for pair in pairs if pair.difference.tells] == significant
    below = {outcome.preset for outcome in stale if outcome.reward.mean < 0.1}
    assert below == {"decoupled_seq_is_rs", "decoupled_k3_rs", "skyrl_geo_mask"}


def in_range(seeds: study.SeedRange) -> str:
    return f"{seeds.mean:.2f} [{seeds.lowest:.2f}, {seeds.highest:.2f}]"


def arms(words: str) -> set[str]:
    return set(words.split())


DECIDED: dict[str, tuple[set[str], set[str], dict[str, int]]] = {
    "decide_stale": (
        arms("product_cap token_cap geometric_negative_50"),
        set(),
        {"geometric_negative_50": 1, "geometric_negative_80": 1, "geometric_50": 1},
    ),
    "decide_cache": (
        set(),
        arms("token_band_50 geometric_50 geometric_negative_50 product_band_50")
        | arms("random_token_50 random_negative_50 token_band_80"),
        {"token_band_50": -1, "token_band_80": -1, "geometric_negative_50": -1},
    ),
    "decide_long_stale": ({"token_cap"}, set(), {}),
    "decide_long_cache": ({"token_cap"}, set(), {}),
}
"""Study → the arms that are significantly better, and worse, than no correction; and those that differ from chance."""


@pytest.mark.parametrize("name", DECIDED)
def test_what_was_decided(name: str) -> None:
    """Check the table, the arms that are better or worse than no correction and than chance, and η's correlation."""
    rows, provenance = study.read_study(name)
    nothing, chance = against_nothing(rows), against_chance(rows, study.find_study(name).by_chance)
    assert (len(nothing), len(chance)) == ((9, 4) if "long" in name else (23, 12))
    assert {pair.seeds for pair in (*nothing, *chance)} == {6}
    differences = [{pair.arm: bold(pair.difference) for pair in pairs} for pairs in (nothing, chance)]
    for outcome in study.outcomes(rows):
        cells = [f"`{outcome.preset}`", in_range(outcome.reward), f"{outcome.kept_fraction.mean:.0%}"[:-1] + " %"]
        cells += [pairs.get(outcome.preset, "–") for pairs in differences]
        assert f"| {' | '.join(cells)} |" in README
    better = {pair.arm for pair in nothing if pair.difference.low > 0}
    worse = {pair.arm for pair in nothing if pair.difference.high < 0}
    beyond = {pair.arm: math.copysign(1, pair.difference.value) for pair in chance if pair.difference.tells}
    assert (better, worse, beyond) == DECIDED[name]
    if "long" not in name:
        eta = {arm: numbers[0] for arm, numbers in provenance["progress"]["none_0"]["10"].items()}
        agreed = progress_correlation(eta, rows)
        for path in (runs.ROOT / "README.md", runs.ROOT.parent / "README.md"):
            words = " ".join(path.read_text(encoding="utf-8").split())
            assert f"{agreed.value:.2f} [{agreed.low:.2f}, {agreed.high:.2f}]" in words.lower()


def bold(difference: Interval) -> str:
    text = f"{difference.value:z.2f} [{difference.low:z.2f}, {difference.high:z.2f}]"
    return f"**{text}**" if difference.tells else text
