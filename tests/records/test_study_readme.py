"""What runs/README.md says of the studies, computed again from their tables."""

import re
import statistics
from typing import Any

import pytest

from rlcorr.records import runs, study
from rlcorr.records.study_comparisons import against_nothing

ON_TWO_DEVICES = ("smol_kv_fp8", "gpu_smol_kv_fp8")
FIRST, EARLIER, LAST = range(1, 7), range(13, 19), range(19, 25)


def test_what_the_readme_says_of_the_pilot() -> None:
    """Check the table, and that 4e-5 is the largest rate that gains 0.1 on both seeds, as smol.md asks."""
    text = (runs.ROOT / "README.md").read_text(encoding="utf-8")
    rows, _ = study.read_study("smol_pilot")
    chosen = []
    for rate in ("1e-5", "2e-5", "4e-5"):
        cells, gains = [], []
        for seed in (0, 1):
            rewards = [row["reward"] for row in rows if (row["preset"], row["seed"]) == (f"rate_{rate}", seed)]
            first, last = sum(rewards[:5]) / 5, sum(rewards[-5:]) / 5
            cells.append(f"{first:.2f}, {last:.2f}")
            gains.append(last - first)
        assert f"| {rate} | {' | '.join(cells)} |" in text
        chosen += [rate] if min(gains) > 0.1 else []
    assert chosen == ["2e-5", "4e-5"]


def test_what_the_readme_says_of_old_weights() -> None:
    """Check the table of part C, the planned comparisons, and the sentences about what was not planned."""
    text = (runs.ROOT / "README.md").read_text(encoding="utf-8")
    rows, _ = study.read_study("smol_stale_6")
    gains, compared = study.gains(rows, 6), {}
    for arm in gains:
        for other in gains.keys() - {arm}:
            values = [gains[arm][seed] - gains[other][seed] for seed in range(10, 15)]
            compared[arm, other] = paired(values)
    for arm, by_seed in gains.items():
        cells = [f"`{arm}`", f"{sum(by_seed.values()) / 5:.2f}"]
        cells += ["–" if arm == other else compared[arm, other] for other in ("none", "fresh")]
        cells.append(", ".join(f"{statistics.fmean(rewards_of(rows, arm, steps)):.2f}" for steps in (FIRST, LAST)))
        assert f"| {' | '.join(cells)} |" in text
    for arm, (low, high) in {"none": (0.4, 1.7), "token_cap": (0.3, 0.4), "product_cap_normalized": (0.2, 0.4)}.items():
        largest = [max(row["k3"] for row in run) for run in runs_of(rows, arm)]
        assert (min(largest), max(largest)) == (pytest.approx(low, abs=0.05), pytest.approx(high, abs=0.05)), arm


def test_what_the_readme_says_of_the_delay() -> None:
    """Check the rewards of the last six steps beside those of the control at the same step, and six steps earlier."""
    text = (runs.ROOT / "README.md").read_text(encoding="utf-8")
    for name in ("smol_stale_6", "smol_last_weights"):
        rows, _ = study.read_study(name)
        for arm in {row["preset"] for row in rows} - {"fresh"}:
            ends = rewards_of(rows, arm, LAST)
            controls = (rewards_of(rows, "fresh", steps) for steps in (LAST, EARLIER))
            cells = [paired([end - fresh for end, fresh in zip(ends, control, strict=True)]) for control in controls]
            assert f"`{arm}` | {' | '.join(cells)} |" in text, (name, arm, cells)


def test_what_the_readme_says_of_the_coarse_cache() -> None:
    text = (runs.ROOT / "README.md").read_text(encoding="utf-8")
    rows, _ = study.read_study("smol_e5m2")
    gains = study.gains(rows, 6)
    for arm in gains:
        cells = gain_cells(gains, arm, ("none", "fresh_cache"))
        cells.append(", ".join(f"{statistics.fmean(rewards_of(rows, arm, steps)):.2f}" for steps in (FIRST, LAST)))
        cells.append(f"{statistics.fmean(run[-1]['accuracy'] for run in runs_of(rows, arm)):.2f}")
        assert f"| {' | '.join(cells)} |" in text
    largest = [max(row["k3"] for row in run) for arm in ("none", "token_cap") for run in runs_of(rows, arm)]
    assert (min(largest), max(largest)) == (pytest.approx(0.15, abs=0.005), pytest.approx(0.41, abs=0.005))


def test_what_the_readme_says_of_the_last_weights() -> None:
    """Check the greedy accuracies after step 24 of part C, which were not planned as an endpoint."""
    text = " ".join((runs.ROOT / "README.md").read_text(encoding="utf-8").split())
    rows, _ = study.read_study("smol_stale_6")
    accuracy = {arm: [run[-1]["accuracy"] for run in runs_of(rows, arm)] for arm in ("fresh", "none", "token_cap")}
    for arm, values in accuracy.items():
        assert f"{statistics.fmean(values):.2f} for `{arm}`" in text
    for arm, other in (("none", "fresh"), ("token_cap", "fresh"), ("token_cap", "none")):
        lower = paired([x - y for x, y in zip(accuracy[arm], accuracy[other], strict=True)])
        assert re.search(rf"`{arm}` minus `{other}`(?: is)? {re.escape(lower)}", text), (arm, other, lower)


def test_what_the_readme_says_of_score_centering() -> None:
    """Check its table, and the planned comparisons of both studies."""
    text = (runs.ROOT / "README.md").read_text(encoding="utf-8")
    rows, _ = study.read_study("smol_centering_stale")
    gains = study.gains(rows, 6)
    for arm in gains:
        cells = gain_cells(gains, arm, ("none", "token_cap"))
        middle, late = (statistics.fmean(rewards_of(rows, arm, steps)) for steps in (range(11, 19), LAST))
        assert f"| {' | '.join(cells)} | {middle:.2f}, {late:.2f} |" in text
    gains = study.gains(study.read_study("smol_centering_fp8")[0], 6)
    for arm, other in (("centered", "none"), ("centered_cap", "token_cap")):
        pair = paired([gains[arm][seed] - gains[other][seed] for seed in range(10, 15)])
        assert re.search(rf"`{arm}` minus `{other}`\s+is\s+{re.escape(pair)}", text), (arm, pair)


def test_what_the_readme_says_of_number_formats() -> None:
    text = (runs.ROOT / "README.md").read_text(encoding="utf-8")
    rows, _ = study.read_study("smol_precision")
    gains, last = study.gains(rows, 6), study.last_accuracies(rows)
    all_steps = {arm: rewards_of(rows, arm, range(1, 21)) for arm in gains}
    for arm in gains:
        higher = paired([one - other for one, other in zip(all_steps[arm], all_steps["none"], strict=True)])
        cells = [*gain_cells(gains, arm, ("none",)), f"{statistics.fmean(all_steps[arm]):.2f}"]
        cells.append("–" if arm == "none" else higher)
        at = (statistics.fmean(rewards_of(rows, arm, range(step, step + 1))) for step in (1, 7, 20))
        cells += [", ".join(f"{reward:.2f}" for reward in at), f"{statistics.fmean(last[arm].values()):.2f}"]
        assert f"| {' | '.join(cells)} |" in text
    assert min(a - b for a, b in zip(all_steps["float32"], all_steps["none"], strict=True)) > 0
    k3 = [row["k3"] for row in rows if row["preset"] == "float32_trainer" and row["step"] > 15]
    assert statistics.median(k3) == pytest.approx(0.4, abs=0.05)


def test_what_the_readme_says_of_replayed_support() -> None:
    text = (runs.ROOT / "README.md").read_text(encoding="utf-8")
    gains = study.gains(study.read_study("smol_support")[0], 6)
    assert f"`replay` minus `none` is {gain_cells(gains, 'replay', ('none',))[2]}" in text


def test_what_the_readme_says_of_the_planned_last_weights() -> None:
    """Check the table of smol_3.md's study, and that each prediction of the plan came true."""
    text = " ".join((runs.ROOT / "README.md").read_text(encoding="utf-8").split())
    rows, _ = study.read_study("smol_last_weights")
    seeds = range(20, 30)
    last = {arm: [by_seed[seed] for seed in seeds] for arm, by_seed in study.last_accuracies(rows).items()}

    def contrast(arm: str, other: str) -> str:
        return paired([one - two for one, two in zip(last[arm], last[other], strict=True)])

    for arm, values in last.items():
        end = statistics.fmean(row["reward"] for row in rows if row["preset"] == arm and row["step"] in LAST)
        cells = [f"`{arm}`", f"{statistics.fmean(values):.2f}"]
        cells += ["–" if arm == other else contrast(arm, other) for other in ("none", "fresh")]
        assert f"| {' | '.join(cells)} | {end:.2f} |" in text
    assert f"`product_cap_normalized` minus `token_cap` is {contrast('product_cap_normalized', 'token_cap')}" in text
    predicted = {
        ("none", "fresh"): (-0.55, -0.2, True),
        ("token_cap", "none"): (0.05, 0.4, True),
        ("product_cap_normalized", "token_cap"): (-0.05, 0.2, False),
        ("token_cap", "fresh"): (-0.25, -0.05, True),
    }
    for (arm, other), (low, high, differs) in predicted.items():
        mean, lower, upper = map(float, re.findall(r"-?\d\.\d+", contrast(arm, other)))
        assert low <= mean <= high
        assert (lower > 0 or upper < 0) == differs


def gain_cells(gains: dict[str, dict[int, float]], arm: str, others: tuple[str, ...]) -> list[str]:
    """Return the first cells of a row: the arm, its mean gain, and its paired differences from other arms."""
    cells = [f"`{arm}`", f"{sum(gains[arm].values()) / 5:.2f}"]
    for other in others:
        values = [gains[arm][seed] - gains[other][seed] for seed in range(10, 15)]
        cells.append("–" if arm == other else paired(values))
    return cells


def runs_of(rows: list[dict[str, Any]], arm: str) -> list[list[dict[str, Any]]]:
    seeds = dict.fromkeys(row["seed"] for row in rows)
    return [[row for row in rows if (row["preset"], row["seed"]) == (arm, seed)] for seed in seeds]


def rewards_of(rows: list[dict[str, Any]], arm: str, steps: range) -> list[float]:
    """Return the mean reward of each seed over these steps."""
    return [statistics.fmean(row["reward"] for row in run if row["step"] in steps) for run in runs_of(rows, arm)]


def paired(differences: list[float]) -> str:
    """Mean and 95 % interval of five differences, or ten: t(0.975; 4) = 2.776445, t(0.975; 9) = 2.262157."""
    count = len(differences)
    half = {5: 2.776445, 10: 2.262157}[count] * statistics.stdev(differences) / count**0.5
    mean = statistics.fmean(differences)
    return f"{mean:.3f} [{mean - half:.3f}, {mean + half:.3f}]"


def test_what_the_readme_says_of_it() -> None:
    """Check the table in runs/README.md, and the sentences that summarise several rows."""
    text = (runs.ROOT / "README.md").read_text(encoding="utf-8")
    stale, coarse = (study.outcomes(study.read_study(name)[0]) for name in ("stale_8", "kv_fp8_e5m2"))
    second = {outcome.preset: outcome for outcome in coarse}
    for outcome in stale:
        cells = [f"`{outcome.preset}`"]
        for result in (outcome, second[outcome.preset]):
            reward = result.reward
            cells += [
                f"{reward.mean:.2f} [{reward.lowest:.2f}, {reward.highest:.2f}]",
                f"{result.kept_fraction.mean:.0%}",
            ]
        assert f"| {' | '.join(cells)} |".replace("%", " %") in text
    assert stale[0].preset == coarse[0].preset == "decoupled_seq_is"
    first = [row["reward"] for row in study.read_study("kv_fp8_e5m2")[0] if row["step"] == 1]
    start = sum(first) / len(first)
    assert [outcome.preset for outcome in coarse if outcome.reward.lowest > start] == ["decoupled_seq_is"]
    for name in ("stale_0", "kv_bf16"):
        reward = study.outcomes(study.read_study(name)[0])[0].reward
        assert f"{reward.mean:.2f} [{reward.lowest:.2f}, {reward.highest:.2f}]" in " ".join(text.split())
    significant = {
        name: [pair.arm for pair in against_nothing(study.read_study(name)[0]) if pair.difference.tells]
        for name in ("stale_8", "kv_fp8_e5m2")
    }
    assert significant == {"stale_8": ["decoupled_token_icepop"], "kv_fp8_e5m2": []}
    below = {outcome.preset for outcome in stale if outcome.reward.mean < 0.1}
    assert below == {"decoupled_seq_is_rs", "decoupled_k3_rs", "skyrl_geo_mask"}


def test_what_the_readme_says_of_learning_as_fast_and_of_largest_gaps() -> None:
    text = " ".join((runs.ROOT / "README.md").read_text(encoding="utf-8").split())
    rows, _ = study.read_study("smol_centering_stale")
    middle = {arm: rewards_of(rows, arm, range(13, 17)) for arm in ("centered", "none", "centered_cap", "token_cap")}
    differences = [
        paired([one - other for one, other in zip(middle["centered"], middle[arm], strict=True)])
        for arm in ("none", "centered_cap", "token_cap")
    ]
    assert "`centered` minus `none`, `centered_cap` and `token_cap` is {}, {} and {}.".format(*differences) in text
    largest = [
        max(row["k3"] for row in run) for run in runs_of(study.read_study("smol_precision")[0], "float32_trainer")
    ]
    assert f"to {min(largest):.2f} to {max(largest):.2f} in single steps" in text


def test_what_the_readme_says_of_the_recorded_runs_on_a_gpu() -> None:
    text = " ".join((runs.ROOT / "README.md").read_text(encoding="utf-8").split())
    rows = {name: runs.read_metrics(runs.ROOT / name) for name in (*ON_TWO_DEVICES, "gpu_smol_bf16", "gpu_smol_fp8")}
    k3 = {name: statistics.fmean(row["rollout_corr/k3_kl"] for row in of_run) for name, of_run in rows.items()}
    assert f"their mean k3 is {k3['gpu_smol_bf16']:.5f} on the GPU" in text
    assert f"{k3['gpu_smol_fp8'] / k3['gpu_smol_kv_fp8']:.1f} times that of a cache in e4m3" in text
    last = [rows[name][-5:] for name in ON_TWO_DEVICES]
    lengths = [statistics.fmean(row["response_length"] for row in five) for five in last]
    cut = [sum(row["truncated"] for row in five) / (5 * 128) for five in last]  # 16 prompts with eight answers each
    shares = " and ".join(f"{100 * share:.0f} %" for share in cut)
    assert f"{lengths[0]:.1f} and {lengths[1]:.1f} tokens, {shares} of them cut off" in text
