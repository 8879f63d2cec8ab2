"""`python -m rlcorr lab`: an experiment of the Lab in numbers, in Python's reference of the page."""

from dataclasses import dataclass, replace

import torch

from rlcorr.command.printing import table_row, wrapped
from rlcorr.lab import Experiment, outcome, run
from rlcorr.lab.experiment import TWO_SIDED
from rlcorr.lab.outcome import ending, sentence, signed

THRESHOLDS = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0)
WIDTHS = (12, 10, 24, 8)


@dataclass(frozen=True)
class Lab(Experiment):
    """Train a tiny policy without a correction and with one, and print how the reward ends."""

    sweep: bool = False
    """Train with nine thresholds from 0.25 to 64 instead of one."""


def run_lab(request: Lab) -> int:
    """Train, print the outcome, and return the exit code."""
    torch.set_num_threads(1)  # the tensors are small
    thresholds = (
        [t for t in THRESHOLDS if request.bound not in TWO_SIDED or t >= 1] if request.sweep else [request.threshold]
    )
    curves = run(request, (None, *thresholds))
    ends = ending(curves.reward)
    print(table_row(["threshold", "reward", "gain", "ESS"], WIDTHS))
    for threshold, values, ess in zip((None, *thresholds), ends, ending(curves.ess), strict=True):
        interval = "" if threshold is None else signed(outcome(values - ends[0]))
        name = "none" if threshold is None else f"{threshold:g}"
        print(table_row([name, f"{values.mean():.2f}", interval, f"{ess.mean():.0%}"], WIDTHS))
    best = int(ends[1:].mean(-1).argmax()) + 1
    named = replace(request, threshold=thresholds[best - 1]).named()
    print("\n" + "\n".join(wrapped(sentence(torch.stack([ends[0], ends[best]]), named))))
    return 0
