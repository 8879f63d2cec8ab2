"""What runs/README.md says of the studies, computed again from their tables."""

import math
import re
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
ON_TWO_DEVICES = ("smol_kv_fp8", "gpu_smol_kv_fp8")
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


def largest_k3(name: str, arm: str) -> Values:
    return [max(row["k3"] for row in run) for run in runs_of(name, arm)]


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


def test_the_table_of_the_pilot() -> None:
    """Check the table, and that 4e-5 is the largest rate that gains 0.1 on both seeds, as smol.md asks."""
    chosen = []
    for rate in ("1e-5", "2e-5", "4e-5"):
        ends = [[fmean(row["reward"] for row in part) for part in (run[:5], run[-5:])]
                for run in runs_of("smol_pilot", f"rate_{rate}")]  # fmt: skip
        cells = [f"{first:.2f}, {last:.2f}" for first, last in ends]
        assert f"| {rate} | {' | '.join(cells)} |" in README
        chosen += [rate] if min(last - first for first, last in ends) > 0.1 else []
    assert chosen == ["2e-5", "4e-5"]


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


def test_which_cap_helps_depends_on_the_length() -> None:
    """Compare both caps with no correction. With short answers the product cap is higher, and the intervals overlap."""
    for name in ("decide_stale", "decide_long_stale", "decide_long_cache"):
        caps = {pair.arm: pair.difference for pair in against_nothing(study.read_study(name)[0]) if "_cap" in pair.arm}
        if "long" in name:
            assert caps["token_cap"].low > caps["product_cap"].high
        else:
            assert caps["product_cap"].value > caps["token_cap"].value > caps["product_cap"].low


@pytest.mark.parametrize(("name", "start", "steps"), [("decide_long_stale", 0.57, 3), ("decide_long_cache", 0.51, 1)])
def test_only_the_token_cap_keeps_long_answers_learning(name: str, start: float, steps: int) -> None:
    """Check the reward at the start: steps 1 to 3, before the weights are stale; with the cache only step 1."""
    rows, _ = study.read_study(name)
    assert fmean(row["reward"] for row in rows if row["step"] <= steps) == pytest.approx(start, abs=0.005)
    ends = {outcome.preset: outcome.reward for outcome in study.outcomes(rows)}
    others = [end for arm, end in ends.items() if arm != "token_cap"]
    if name == "decide_long_stale":
        assert ends["token_cap"].lowest > max(end.highest for end in others)
        return
    assert ends["token_cap"].lowest > max(start, ends["none"].highest)
    assert start > max(end.mean for end in others)
    *lower, second, first = sorted(rewards(name, "geometric_80", range(31, 41)))
    assert (round(second, 2), round(first, 2)) == (0.66, 0.71)
    assert max(lower) < 0.2


PAIRS = [
    ("smol_stale_6", accuracy, "none", "fresh"),
    ("smol_stale_6", accuracy, "token_cap", "fresh"),
    ("smol_stale_6", accuracy, "token_cap", "none"),
    ("smol_centering_fp8", gain, "centered", "none"),
    ("smol_centering_fp8", gain, "centered_cap", "token_cap"),
    ("smol_support", gain, "replay", "none"),
    ("smol_last_weights", accuracy, "product_cap_normalized", "token_cap"),
]
"""Study, number, and the arms of a difference that a sentence has."""


@pytest.mark.parametrize(("name", "of", "arm", "other"), PAIRS)
def test_the_sentence_about_a_pair(name: str, of: Callable[[str, str], Values], arm: str, other: str) -> None:
    difference = minus(of(name, arm), of(name, other))
    assert re.search(rf"`{arm}` minus `{other}`(?: is)? {re.escape(difference)}", WORDS), difference


def test_sentences_about_several_arms() -> None:
    middle = {arm: rewards("smol_centering_stale", arm, range(13, 17)) for arm in ("none", "centered_cap", "token_cap")}
    centered = rewards("smol_centering_stale", "centered", range(13, 17))
    lower = [minus(centered, values) for values in middle.values()]
    assert "`centered` minus `none`, `centered_cap` and `token_cap` is {}, {} and {}.".format(*lower) in WORDS
    largest = largest_k3("smol_precision", "float32_trainer")
    assert f"to {min(largest):.2f} to {max(largest):.2f} in single steps" in WORDS
    for arm in ("fresh", "none", "token_cap"):
        assert f"{fmean(accuracy('smol_stale_6', arm)):.2f} for `{arm}`" in WORDS


def test_the_sizes_of_gaps() -> None:
    for name, several, ends, within in (
        ("smol_stale_6", ["none"], (0.4, 1.7), 0.05),
        ("smol_stale_6", ["token_cap"], (0.3, 0.4), 0.05),
        ("smol_stale_6", ["product_cap_normalized"], (0.2, 0.4), 0.05),
        ("smol_e5m2", ["none", "token_cap"], (0.15, 0.41), 0.005),
    ):
        largest = [k3 for arm in several for k3 in largest_k3(name, arm)]
        assert (min(largest), max(largest)) == pytest.approx(ends, abs=within), (name, several)
    higher = zip(over_all_steps("smol_precision", "float32"), over_all_steps("smol_precision", "none"), strict=True)
    assert min(one - other for one, other in higher) > 0
    late = [row["k3"] for run in runs_of("smol_precision", "float32_trainer") for row in run if row["step"] > 15]
    assert statistics.median(late) == pytest.approx(0.4, abs=0.05)


def test_each_prediction_of_the_plan_came_true() -> None:
    """The plan of the last weights, smol_3.md: the range of a difference, and whether it is significant."""
    for arm, other, low, high, differs in (
        ("none", "fresh", -0.55, -0.2, True),
        ("token_cap", "none", 0.05, 0.4, True),
        ("product_cap_normalized", "token_cap", -0.05, 0.2, False),
        ("token_cap", "fresh", -0.25, -0.05, True),
    ):
        difference = minus(accuracy("smol_last_weights", arm), accuracy("smol_last_weights", other))
        mean, lower, upper = map(float, re.findall(r"-?\d\.\d+", difference))
        assert low <= mean <= high
        assert (lower > 0 or upper < 0) == differs


def test_the_recorded_runs_on_a_gpu() -> None:
    rows = {name: runs.read_metrics(runs.ROOT / name) for name in (*ON_TWO_DEVICES, "gpu_smol_bf16", "gpu_smol_fp8")}
    k3 = {name: fmean(row["rollout_corr/k3_kl"] for row in of_run) for name, of_run in rows.items()}
    assert f"their mean k3 is {k3['gpu_smol_bf16']:.5f} on the GPU" in WORDS
    assert f"{k3['gpu_smol_fp8'] / k3['gpu_smol_kv_fp8']:.1f} times that of a cache in e4m3" in WORDS
    last = [rows[name][-5:] for name in ON_TWO_DEVICES]
    lengths = [fmean(row["response_length"] for row in five) for five in last]
    cut = [sum(row["truncated"] for row in five) / (5 * 128) for five in last]  # 16 prompts with eight answers each
    shares = " and ".join(f"{100 * share:.0f} %" for share in cut)
    assert f"{lengths[0]:.1f} and {lengths[1]:.1f} tokens, {shares} of them cut off" in WORDS
