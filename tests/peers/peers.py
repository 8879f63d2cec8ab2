"""Random batches and configurations through the real verl and through rlcorr: `make peers`.

    make peers                                 3000 cases
    make peers ARGS="--count 20000 --seed 7"   more, others
    make peers ARGS="--seed 4711 --count 1"    the case that a difference named

Compared: translated presets and configurations, weights, kept tokens, every metric that both report, KL penalties and
policy losses with their gradients. Where the two are known to differ, nearly always by a fault of verl's, a `Fault`
says when, and the expectation is corrected; a difference that no fault explains ends the run with exit status 1.

Decisions are compared only where they are decided: a statistic within 1e-5 of its bound, or within the rounding of the
sum that it is, is counted under "left out". Log-ratios and statistics for that are computed here, in float64.
"""

import argparse
import sys
from dataclasses import replace
from typing import Any

import torch
from cases import Case, Options, make_case
from compare import compare_correction
from compare_losses import compare_kl, compare_losses
from counting import Tally
from faults import FAULTS
from verl_peer import verl_presets

from rlcorr.config import CorrectionConfig
from rlcorr.errors import UsageError
from rlcorr.presets import PRESETS
from rlcorr.systems.verl.config import from_verl


def compare_presets(presets: dict[str, Options], tally: Tally) -> None:
    """Ours keep what verl keeps: their k1 bounds are those that verl puts on 1/r, inverted."""
    for name, fields in presets.items():
        case = Case(0, torch.zeros(1, 1), torch.zeros(1, 1), torch.ones(1, 1, dtype=torch.bool), fields)
        ours = PRESETS[name].config if name in PRESETS else None
        tally.check("presets", case, ours is not None and rounded(ours) == rounded(case.config), f"{name} is {ours}")


def compare_translation(case: Case, tally: Tally) -> None:
    """The library's reader of verl's configuration against the tests' own."""
    got = from_verl(case.options)
    tally.check("translations", case, rounded(got) == rounded(case.config), f"{got}")


def rounded(config: CorrectionConfig) -> CorrectionConfig:
    """1/(1/x) is not always x."""
    rules = [
        replace(rule, upper=float(f"{rule.upper:.12g}"), lower=rule.lower and float(f"{rule.lower:.12g}"))
        for rule in config.rollout_rs
    ]
    return replace(config, rollout_rs=tuple(rules))


def table(header: tuple[str, ...], rows: list[tuple[Any, ...]]) -> str:
    cells = [header, *[tuple(map(str, row)) for row in rows]]
    widths = [max(len(row[i]) for row in cells) for i in range(len(header))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in cells]
    return "\n".join(lines)


def report(tally: Tally) -> str:
    kinds = [(k, tally.compared[k], tally.agreed[k], tally.left_out[k]) for k in tally.compared]
    faults = [
        (n, tally.applied[n], tally.shown[n] if tally.applied[n] else "never met", f.what) for n, f in FAULTS.items()
    ]
    return "\n\n".join(
        [
            table(("compared", "comparisons", "agree", "left out"), kinds),
            table(("known difference", "cases", "changed", "what it is: verl; ours"), faults),
            f"{len(tally.unexplained)} differences without an explanation",
            *tally.unexplained[:20],
        ]
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--count", type=int, default=3000, help="how many random cases")
    parser.add_argument("--seed", type=int, default=0, help="seed of the first; the next has the next")
    options = parser.parse_args()
    try:
        presets = verl_presets()
    except UsageError as error:
        sys.exit(str(error))
    torch.set_num_threads(1)
    tally = Tally()
    compare_presets(presets, tally)
    for seed in range(options.seed, options.seed + options.count):
        case = make_case(seed, presets)
        compare_translation(case, tally)
        compare_correction(case, tally)
        compare_kl(case, tally)
        compare_losses(case, tally)
    print(report(tally))
    sys.exit(1 if tally.unexplained else 0)


if __name__ == "__main__":
    main()
