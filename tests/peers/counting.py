"""What was compared, what agreed, and what differed without an explanation."""

from collections import Counter
from dataclasses import dataclass, field

from cases import Case
from torch import Tensor


@dataclass
class Tally:
    """What was compared, kind by kind, and what differed."""

    compared: Counter[str] = field(default_factory=Counter)
    agreed: Counter[str] = field(default_factory=Counter)
    left_out: Counter[str] = field(default_factory=Counter)  # too close to call, or not a number in verl
    applied: Counter[str] = field(default_factory=Counter)  # per fault: cases that it affects
    shown: Counter[str] = field(default_factory=Counter)  # and those in which verl's answer is another
    unexplained: list[str] = field(default_factory=list)

    def fault(self, name: str, shown: bool) -> None:
        self.applied[name] += 1
        self.shown[name] += shown

    def check(self, kind: str, case: Case, right: bool, difference: str) -> None:
        self.compared[kind] += 1
        self.agreed[kind] += right
        if not right:
            self.unexplained.append(f"seed {case.seed}, {kind}: {difference}; {describe(case)}")

    def close(self, kind: str, case: Case, got: Tensor, want: Tensor, allowed: Tensor | float) -> None:
        """Equal up to `allowed`; NaN equals NaN, and infinities equal themselves."""
        got, want = got.detach().double(), want.detach().double()
        same = (got == want) | (got.isnan() & want.isnan()) | ((got - want).abs() <= allowed)
        worst = "" if same.all() else f"got {got[~same][0].item():.9g}, verl {want[~same][0].item():.9g}"
        self.check(kind, case, bool(same.all()), f"{int((~same).sum())} of {same.numel()}, first {worst}")


def describe(case: Case) -> str:
    options = {key: value for key, value in case.options.items() if value is not None and value is not False}
    return f"{tuple(case.mask.shape)} {str(case.old.dtype).removeprefix('torch.')} {options}"
