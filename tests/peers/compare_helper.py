"""The drop-in beside verl's own helper, value by value on random batches: `make peers`.

Exit status 1 where a mask or a weight differs, an exception is of another kind, a key is missing or too many, or fewer
than 99.9 % of the metrics lie within 1e-5 + 2e-4·|x|. Log-probs are float32, as verl's are.
"""

import argparse
import collections
import math
import random
import sys
from typing import Any

import torch
from torch import Tensor
from verl_peer import load

from rlcorr.recorders import verl_helper
from rlcorr.systems.verl.thresholds import RULES

ABSOLUTE, RELATIVE, SHARE = 1e-5, 2e-4, 0.999
AT_A_BOUND = 2e-6
"""A statistic so near to a bound is decided by the order of additions: such batches are drawn again."""


def make_case(seed: int) -> tuple[Tensor, Tensor, Tensor, dict[str, Any]]:
    """Log-probs of both policies, a mask with a token, and options of any kind, a few of them wrong."""
    draw, rng = random.Random(seed), torch.Generator().manual_seed(seed)
    rows, columns = draw.choice([(1, 1), (3, 7), (4, 16), (8, 33), (16, 5)])
    old = torch.randn(rows, columns, generator=rng) - 2
    scale = draw.choice([0.0, 0.01, 0.03, 0.1, 0.1, 0.3, 0.3, 0.6, 1.5, 8.0])
    rollout = old - scale * torch.randn(rows, columns, generator=rng)
    lengths = torch.randint(draw.choice([0, 1, 1]), columns + 1, (rows, 1), generator=rng)
    mask = (torch.arange(columns) < lengths).long()
    mask[0, 0] = 1
    options: dict[str, Any] = {}
    if draw.random() < 0.7:
        upper = draw.choice([1.2, 2.0, 5.0, 0.9])
        options["rollout_is"] = draw.choice(["token", "sequence"])
        options["rollout_is_threshold"] = draw.choice([upper, str(upper), f"{upper / 3}_{upper}"])
        options["rollout_is_batch_normalize"] = draw.random() < 0.3
    if draw.random() < 0.7:
        names = draw.sample(sorted(set(RULES) - {"binary_kl"}), draw.choice([1, 1, 2, 3]))
        options["rollout_rs"] = ",".join(names)
        options["rollout_rs_threshold"] = ",".join(_threshold(name, draw) for name in names)
    if draw.random() < 0.03:
        wrong = [{"rollout_is": "geometric"}, {"rollout_is": "token", "rollout_is_threshold": True},
                 {"rollout_rs": "token_k4", "rollout_rs_threshold": 1.0}, {"rollout_rs": "token_k1"},
                 {"rollout_rs": "token_k2", "rollout_rs_threshold": "0.1_0.2"},
                 {"rollout_is": "token", "rollout_is_threshold": "x"}]  # fmt: skip
        options |= draw.choice(wrong)
    return old, rollout, mask, options


def _threshold(name: str, draw: random.Random) -> str:
    if not name.endswith("_k1"):
        return str(draw.choice([0.001, 0.05, 0.7, 3.0]))
    upper = draw.choice([1.01, 1.5, 4.0])
    return draw.choice([str(upper), f"{1 / upper / draw.choice([1.0, 1.5])}_{upper}"])


def outcome(module: Any, case: tuple[Tensor, Tensor, Tensor, dict[str, Any]]) -> Any:
    old, rollout, mask, options = case
    try:
        weights, kept, report = module.compute_rollout_correction_and_rejection_mask(old, rollout, mask, **options)
    except (ValueError, TypeError, ZeroDivisionError) as error:
        return type(error).__name__
    return (None if weights is None else weights.batch["rollout_is_weights"]), kept, report


def undecided(case: tuple[Tensor, Tensor, Tensor, dict[str, Any]]) -> bool:
    """Whether a sum of this batch lies on a bound for some order of additions: asked of verl in float64."""
    old, rollout, mask, options = case
    helper = load().helper
    for nudge in (1 - AT_A_BOUND, 1 + AT_A_BOUND):
        d = (old.double() - rollout.double()) * nudge
        other = outcome(helper, (d, torch.zeros_like(d), mask, options))
        here = outcome(helper, case)
        if isinstance(here, str) or isinstance(other, str):
            if here != other:
                return True
            continue
        if not torch.equal(here[1], other[1]):
            return True
        if here[0] is not None and not torch.equal(here[0] == 0, other[0] == 0):
            return True
    return False


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--count", type=int, default=3000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    torch.set_num_threads(1)
    wrong: list[str] = []
    counts: collections.Counter[str] = collections.Counter()
    off: collections.Counter[str] = collections.Counter()
    for seed in range(options.seed, options.seed + options.count):
        compare(seed, wrong, counts, off)
    share = 1 - sum(off.values()) / counts["values"]
    print(
        f"the drop-in: {counts['batches']} batches, {counts['undecided']} left out at a bound, {counts['raised']} raise"
    )
    print(f"the same; masks and weights {'differ' if wrong else 'equal'}; {100 * share:.3f} % of {counts['values']}")
    print(f"values within 1e-5 + 2e-4·|x|; of the others verl's own in float64 is nearer to ours for {counts['noise']}")
    print("beyond:", dict(off.most_common(12)))
    print("\n".join(wrong[:20]))
    sys.exit(1 if wrong or share < SHARE else 0)


def compare(seed: int, wrong: list[str], counts: "collections.Counter[str]", off: "collections.Counter[str]") -> None:
    case = make_case(seed)
    if undecided(case):
        counts["undecided"] += 1
        return
    counts["batches"] += 1
    theirs, ours = outcome(load().helper, case), outcome(verl_helper, case)
    if isinstance(theirs, str) or isinstance(ours, str):
        counts["raised"] += 1
        # Of two mistakes verl names another: it divides by a sum of weights of 0 before it reads the rules.
        if theirs != ours and (theirs, ours) != ("ZeroDivisionError", "ValueError"):
            wrong.append(f"seed {seed}: verl {str(theirs)[:40]}, ours {str(ours)[:40]}; {case[3]}")
        return
    (their_weights, their_mask, their_report), (our_weights, our_mask, our_report) = theirs, ours
    if not torch.equal(their_mask, our_mask) or their_mask.dtype != our_mask.dtype:
        wrong.append(f"seed {seed}: masks; {case[3]}")
    if (their_weights is None) != (our_weights is None):
        wrong.append(f"seed {seed}: one has weights; {case[3]}")
    elif their_weights is not None and not torch.allclose(their_weights, our_weights, rtol=RELATIVE, atol=ABSOLUTE):
        wrong.append(f"seed {seed}: weights; {case[3]}")
    if their_report.keys() != our_report.keys():
        wrong.append(f"seed {seed}: keys {their_report.keys() ^ our_report.keys()}; {case[3]}")
    for key in their_report.keys() & our_report.keys():
        counts["values"] += 1
        want, got = their_report[key], our_report[key]
        if not (want == got or math.isclose(got, want, rel_tol=RELATIVE, abs_tol=ABSOLUTE)):
            off[key.removeprefix("rollout_corr/")] += 1
            exact = outcome(load().helper, (case[0].double(), case[1].double(), *case[2:]))[2][key]
            counts["noise"] += abs(got - exact) < abs(want - exact)


if __name__ == "__main__":
    main()
