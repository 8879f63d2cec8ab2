"""Sentences and tables of the Compare view."""

import math
from collections.abc import Mapping

from rlcorr.analysis.comparison import Agreement
from rlcorr.gradients.bootstrap import Interval
from rlcorr.gradients.report import GradientComparison
from rlcorr.measuring.metrics import describe
from text.formatting import number, percent, short_exponent, table
from text.gradient import NUMBERS, short

EXPLAIN = (
    "Compare two configurations, A and B, on one batch: which tokens each trains on, the weight of each token, every "
    "metric, and the gradient. Or compare two batches under one configuration: two runs, or two steps of a run. A is "
    "the configuration that the other pages show."
)
CONFIGURATIONS, RUNS = MODES = ("two configurations", "two runs")
MODE = "Compare"
SWAP = "Swap A and B"

UNKNOWN = "Which is better, the data of this step do not tell."
MORE = "A step of {better} on {size:,} answers makes more progress: η is {difference} above that of {other}."
NOT_SIGNIFICANT = (
    "A step on {size:,} answers does not tell A from B: their progress (η) differs by {difference}, B minus A."
)
SAME_PROGRESS = "A step of A or of B on {size:,} answers makes the same progress (η)."

AGREEMENT = {
    "Differ on": "Share of the response tokens that only one of the two trains on.",
    "Only A": "Tokens that A trains on and B does not.",
    "Only B": "Tokens that B trains on and A does not.",
}
TOKENS = "Tokens trained on"
MASKS = (
    "Rows are sequences, columns are tokens. A token is trained on if no rule rejects it and its weight is above 0 "
    "(masking sets weights to 0). If several tokens share a cell, it shows a difference first."
)
HEADLINES = {
    "kept_fraction": "Kept tokens", "rollout_rs_seq_masked_fraction": "Sequences touched",
    "trained_eff_sample_size": "ESS of the kept", "trained_is_mean": "Mean weight",
    "rollout_is_oob_ratio": "Weights clipped", "ratio_eff_sample_size": "ESS of the ratios",
    "k3_kl": "k3", "abs_log_ratio": "Mean |Δ|", "tokens": "Tokens",
}  # fmt: skip
"""Metric → its name on the page. The others are named as the trainer logs them."""
METRICS = "Point at a name for its definition. A dash: not measured under that configuration."
WEIGHTS_IN = "Weights in {name}"

GRADIENT_TITLE = "Gradients"
GRADIENT = (
    "Compared with the on-policy gradient. Brackets: 95 % of the bootstrap samples. B − A is paired: A and B are "
    "measured on the same samples, so the noise that they share cancels. If the bracket of B − A contains 0, the two "
    "do not differ significantly."
)
TWO_GAPS = "How do the gaps of these two runs differ?"
RUNS_INTRO = (
    "The same configuration on two batches. Their tokens differ, so the page does not compare token by token. It "
    "compares the distribution of the tokens, the size of |Δ|, and the metrics."
)
SAME_STEP = "A and B are the same step: every difference is 0."
DENSITY_TITLE, MAGNIFIED_TITLE, TAIL_TITLE = "Both probabilities", "The difference", "The tail"
DENSITY = (
    "Horizontal: probability in the sampler. Vertical: probability in the trainer. Orange: more likely in the trainer. "
    "Blue: more likely in the sampler."
)
MAGNIFIED = (
    "The difference, magnified. Horizontal: probability in the sampler. Vertical: the ratio. A and B have the same "
    "axes. The outermost rows contain everything outside the axes."
)
TAIL = "Share of the tokens that differ by at least this much, in A and in B."
NO_STEP_B = "Run B has no step yet."

ExplainedRow = tuple[str, str, list[str]]  # name, its meaning, cells


def agreement(masks: Agreement) -> dict[str, str]:
    """Return label → text, in the order of AGREEMENT."""
    shown = (percent(masks.differing), f"{masks.only_a:,}", f"{masks.only_b:,}")
    return dict(zip(AGREEMENT, shown, strict=True))


def advice(progress: Interval, size: int) -> str:
    """Return a sentence, in plain text, about which makes more progress.

    `progress` is B − A, with `size` answers in a batch.
    """
    if progress.low == progress.high == 0:
        return SAME_PROGRESS.format(size=size)
    if not progress.tells:
        return NOT_SIGNIFICANT.format(size=size, difference=interval(progress, sign=True))
    if progress.value > 0:
        return MORE.format(size=size, better="B", other="A", difference=interval(progress))
    above = Interval(-progress.value, -progress.high, -progress.low)
    return MORE.format(size=size, better="A", other="B", difference=interval(above))


def metric_rows(a: Mapping[str, float], b: Mapping[str, float]) -> list[ExplainedRow]:
    """Return a row per metric of HEADLINES that A or B has: its name, its meaning, and its values."""
    rows = []
    for key in (key for key in HEADLINES if key in a or key in b):
        of_a, of_b = a.get(key, math.nan), b.get(key, math.nan)
        values = [number(of_a), number(of_b), signed(of_b - of_a)]
        rows.append((HEADLINES[key], f"{describe(key)} Logged as {key}.", values))
    return rows


def signed(value: float) -> str:
    """Format a number with its sign; return a dash for NaN."""
    return "–" if math.isnan(value) else short_exponent(f"{value:+.4g}").replace("-", "−") if value else "0"


def interval(ends: Interval, *, sign: bool = False) -> str:
    write = _signed if sign else short
    return f"{write(ends.value)} [{write(ends.low)},\u00a0{write(ends.high)}]"


def gradient_rows(gradients: GradientComparison) -> list[ExplainedRow]:
    """Return a row per number: A, B, and the paired difference, for the one batch size of `gradients`."""
    a, b = gradients.a, gradients.b
    rows = (
        ("Progress (η)", a.progress[0], b.progress[0], gradients.progress[0]),
        ("Bias", a.relative_bias, b.relative_bias, gradients.bias),
        ("Noise", a.noise[0], b.noise[0], gradients.noise[0]),
        ("Cosine", a.cosine, b.cosine, gradients.cosine),
    )
    return [
        (name, NUMBERS[name], [interval(in_a), interval(in_b), interval(difference, sign=True)])
        for name, in_a, in_b, difference in rows
    ]


def _signed(value: float) -> str:
    return short(value) if math.isnan(value) or value < 0 else f"+{short(value)}"


def pairs_table(header: list[str], rows: list[ExplainedRow]) -> str:
    """Return an HTML table of literal text, in which each name has its meaning as a tooltip."""
    meanings = {name: hint for name, hint, _ in rows}
    cells = [[name, *numbers] for name, _, numbers in rows]
    return f"<div class='rl-pairs'>{table(header, cells, meanings)}</div>"
