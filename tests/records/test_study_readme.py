"""What runs/README.md says of the studies, computed again from their tables."""

import math
from statistics import fmean

import pytest

from rlcorr.gradients.bootstrap import Interval
from rlcorr.records import runs, study
from rlcorr.records.study_comparisons import against_chance, against_nothing, progress_correlation

README = (runs.ROOT / "README.md").read_text(encoding="utf-8")
WORDS = " ".join(README.split())


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
