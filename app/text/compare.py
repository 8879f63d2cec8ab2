"""What the Compare view says, and its tables."""

import math
from collections.abc import Iterable

from rlcorr.analysis.comparison import Agreement, MetricPair
from rlcorr.gradients.bootstrap import Interval
from rlcorr.gradients.comparison import GradientComparison
from rlcorr.measuring.metrics import describe
from text.formatting import number, percent, plain, table
from text.gradient import NUMBERS, short

EXPLAIN = (
    "Two configurations on one batch, A and B: which tokens each trains on, what each token weighs, what every metric "
    "and the gradient become. Or two batches under one configuration: two runs, or two steps of a run. A is what the "
    "other pages show."
)
CONFIGURATIONS, RUNS = "two configurations", "two runs"
MODE = "Compare"
SWAP = "Swap A and B"
HEADING = {"A": "##### A", "B": "##### B"}

SAME_TOKENS = "A and B train on the same tokens."
OTHER_TOKENS = "A and B differ on {share} of the tokens."
MORE = "With {size:,} answers in a batch, {better}: it makes more progress (η, B − A: {difference})."
NOT_WHICH = (
    "With {size:,} answers in a batch, these data do not tell which makes more progress (η, B − A: {difference})."
)
ALIKE = "Either: with {size:,} answers in a batch both make the same progress (η)."

AGREEMENT = {
    "Differ on": "Share of the response tokens that one of the two trains on and the other does not.",
    "Jaccard": "Tokens that both train on, over tokens that at least one of them trains on. 1: the same tokens.",
    "Only A": "Tokens that A trains on and B does not.",
    "Only B": "Tokens that B trains on and A does not.",
    "Neither": "Tokens that neither trains on.",
}
MASKS = (
    "Rows are sequences, columns are tokens. A token is trained on where no rule rejects it and its weight is above 0 "
    "(masking sets weights to 0). Where several tokens share a cell, a difference shows."
)
WEIGHTS = (
    "Tokens that both train on, by their weight in A (across) and in B (up). Warm: B weighs more. Cool: A weighs more. "
    "The outermost cells hold everything beyond."
)
HEADLINES = (
    "kept_fraction", "rollout_rs_seq_masked_fraction", "trained_eff_sample_size", "trained_is_mean",
    "rollout_is_oob_ratio", "ratio_eff_sample_size", "k3_kl", "abs_log_ratio", "tokens",
)  # fmt: skip
METRICS = "Rest the pointer on a name for its definition. A dash: not measured under that configuration."
DIFFERENT, EQUAL = "Other metrics that differ", "Other metrics that are equal"
EACH = "Weights in {name}"

GRADIENT = (
    "Beside the on-policy gradient, with 95 % of the bootstrap samples in brackets. B − A is paired: both are measured "
    "on the same samples, so the noise that they share cancels. 0 inside its bracket: not to be told apart."
)
GRADIENT_BARS = "Of both, with 95 % bars. Bias and noise are in units of the on-policy gradient, progress is a share."
GRADIENT_DIFFERENCES = (
    "B − A of these and of the cosine. A bar that reaches over 0 tells nothing apart; to the left of it B is smaller."
)
BETWEEN = {
    "Cosine, A with B": "Between the gradients that A and B have on this batch: 1 if their steps go the same way.",
    "Expected cosine": "The same for the expected gradients, without the noise that both share. A dash: one of them "
    "cannot be told from noise.",
    "B makes more progress in": "Share of the bootstrap samples in which the progress of B is the greater one; equal "
    "counts half.",
}
RUNS_INTRO = (
    "The same configuration on two batches. Their tokens are not the same, so nothing is compared token by token: only "
    "where the tokens lie, how large |Δ| becomes, and the metrics."
)
SAME_STEP = "A and B are the same step: every difference is 0."
DENSITY = (
    "Tokens by the probability in the engine (across) and in the trainer (up). Warm: likelier in the trainer. Cool: "
    "likelier in the engine."
)
MAGNIFIED = (
    "The difference, magnified: the ratio (up) over the engine's probability (across), on the same axes for A and B. "
    "The outermost rows hold everything beyond."
)
TAIL = "Which share of the tokens differs by at least so much, in A and in B."
NO_STEP_B = "Run B has no step yet."

Hinted = tuple[str, str, list[str]]  # name, what it means, cells


def batch_name(slug: str, step: int) -> str:
    return plain(f"{slug}, step {step}")


def agreement(masks: Agreement) -> dict[str, str]:
    """Label → text, in the order of AGREEMENT."""
    shown = (
        percent(masks.differing),
        number(masks.jaccard),
        f"{masks.only_a:,}",
        f"{masks.only_b:,}",
        f"{masks.neither:,}",
    )
    return dict(zip(AGREEMENT, shown, strict=True))


def answer(masks: Agreement) -> str:
    """On what they differ; in plain text."""
    return OTHER_TOKENS.format(share=percent(masks.differing)) if masks.differing else SAME_TOKENS


def advice(progress: Interval, size: int) -> str:
    """Which makes more progress, B − A with so many answers in a batch; in plain text."""
    difference = interval(progress, sign=True)
    if progress.low == progress.high == 0:
        return ALIKE.format(size=size)
    if not progress.tells:
        return NOT_WHICH.format(size=size, difference=difference)
    return MORE.format(size=size, better="B" if progress.value > 0 else "A", difference=difference)


def metric_rows(pairs: Iterable[MetricPair]) -> list[Hinted]:
    return [(pair.key, describe(pair.key), [number(pair.a), number(pair.b), signed(pair.difference)]) for pair in pairs]


def signed(value: float) -> str:
    """With its sign; a dash where there is nothing to show."""
    return "–" if math.isnan(value) else f"{value:+.4g}" if value else "0"


def interval(ends: Interval, *, sign: bool = False) -> str:
    text = _signed if sign else short
    return f"{text(ends.value)} [{text(ends.low)},\u00a0{text(ends.high)}]"


def between(gradients: GradientComparison) -> dict[str, str]:
    """Label → text, in the order of BETWEEN; for the one batch size that was asked for."""
    (b_is_better,) = gradients.b_is_better
    shown = (short(gradients.between.value), short(gradients.expected.value), percent(b_is_better))
    return dict(zip(BETWEEN, shown, strict=True))


def gradient_rows(gradients: GradientComparison) -> list[Hinted]:
    """Each number of both, and by how much it differs on the same samples; for the one batch size."""
    a, b = gradients.a, gradients.b
    rows = (
        ("Progress (η)", a.progress[0], b.progress[0], gradients.progress[0]),
        ("Bias", a.relative_bias, b.relative_bias, gradients.bias),
        ("Noise", a.noise[0], b.noise[0], gradients.noise[0]),
        ("Cosine", a.cosine, b.cosine, gradients.cosine),
    )
    return [
        (name, NUMBERS[name], [interval(of_a), interval(of_b), interval(difference, sign=True)])
        for name, of_a, of_b, difference in rows
    ]


def _signed(value: float) -> str:
    return short(value) if math.isnan(value) or value < 0 else f"+{short(value)}"


def pairs_table(header: list[str], rows: list[Hinted]) -> str:
    """Literal text, in which a name explains itself."""
    meanings = {name: hint for name, hint, _ in rows}
    cells = [[name, *numbers] for name, _, numbers in rows]
    return f"{WHOLE_NUMBERS}<div class='rl-pairs'>{table(header, cells, meanings)}</div>"


WHOLE_NUMBERS = """<style>
.rl-pairs .rl-table td { overflow-wrap: normal }
.rl-pairs .rl-table td:first-child { overflow-wrap: anywhere; min-width: 4rem }
</style>"""
