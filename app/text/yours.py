"""Sentences of the page for a person's own data."""

import math
import re

from rlcorr import CorrectionConfig
from rlcorr.analysis.budget import CLIPPED_LIMIT, ESS_LIMIT
from rlcorr.analysis.published import Measure
from rlcorr.foreign.import_run import ImportSummary
from rlcorr.rules import RejectionRule
from rlcorr.systems.mapping.serialize import short_number
from rlcorr.weights import LEVELS
from text.formatting import short_exponent
from text.phrases import statistic

# --- the box ---

DROP = "Drop your files here"
HINTS = {
    ".zip": "Unpack it, and drop the files that are in it.",
    ".gz": "Unpack it, and drop the file that is in it.",
    ".csv": "A cell of such a table holds no list of numbers. Write JSON Lines: one response per line, with a list for "
    "each column.",
    ".txt": "If each line is a JSON object, name the file .jsonl.",
}
"""Ending → what to do with such a file, after the sentence that it is not read."""
TOO_LARGE = (
    "The file was not read: it is larger than {limit} MB, the limit of this server. Remove it with its ×, and drop one "
    "file per step or per rank. The command python -m rlcorr report reads Parquet files of any size."
)
REFUSED = (
    "The page shows nothing, because the files could not be read. Remove the wrong file with its ×, or drop another "
    "one."
)
EXAMPLE = "You have not dropped a file yet. As an example, the page shows the recorded run {run}."


def read_line(name: str, summary: ImportSummary) -> str:
    """Return the line that the box folds to after files have been read."""
    steps = "" if summary.steps == 1 else f", {summary.steps} steps"
    return f"{name}: {summary.responses:,} sequences, {summary.tokens:,} tokens{steps}"


# --- the verdict ---

ALL_STEPS = "Over all recorded steps:"
SEE_TOKEN = "See token {column} of response {row}"
OTHER_STEP = "Step {step} of this run has a fault. {sentence}"
NO_TABLE = (
    "There are no thresholds and no configuration here, because a threshold would only hide the fault. Correct it, and "
    "drop the files again."
)
WITHOUT = "without the token"
AVERAGES = ("", "mean", WITHOUT, "trimmed", "median")
"""Columns of the sizes of the gap; the third only if tokens are named."""
AVERAGES_ARE = {
    WITHOUT: "The mean over all tokens except those that the verdict names.",
    "trimmed": "The mean without the 1 % of the tokens with the largest |Δ|.",
}


def unbroken(sentence: str) -> str:
    """Return the sentence with minus signs in its exponents, at which no browser breaks a line.

    >>> unbroken("k3 is 4e-5, measured with e4m3-caches.")
    'k3 is 4e−5, measured with e4m3-caches.'
    """
    return re.sub(r"(?<=\de)-(?=\d)", "−", sentence)


def size_name(label: str) -> str:
    """Return the name of a row of the sizes, whose columns say which average it is.

    >>> size_name("Mean |Δ|")
    '|Δ|'
    """
    return label.removeprefix("Mean ")


# --- corrections ---

SHIPPED = "What {system} ships, on your batch"
SHIPPED_PYTHON = "Published corrections, on your batch"
SHIPPED_ARE = "Measured on step {step}. The system's own default is marked."
DEFAULT = "default"
UNMEASURED = "{name}: {reason}"
BUDGET = "Thresholds for your budget"
KEEP = "Keep at least"
KEEPS = ("99 %", "95 %", "90 %", "80 %")
BUDGET_ARE = (
    "The tightest threshold of each kind that keeps this share. Chosen on step {chosen_on} and checked on step "
    "{unseen}, which was not used to choose."
)
BUDGET_OF_ONE = (
    "The tightest threshold of each kind that keeps this share. The run has only one step, so there is no other step "
    "to check them on."
)
NO_CAP = (
    "A cap on the weights is not among them: it keeps every token, so a budget of tokens cannot choose it. Published "
    "caps are 2 to 5."
)
SUGGESTED = {
    "decoupled_token_icepop": "band of each token's weight",
    "decoupled_geo_rs": "mean ratio of an answer",
    "decoupled_k3_rs": "mean k3 of an answer",
    "skyrl_product_mask": "product of an answer's ratios",
}
"""Preset whose bounds a budget moves, one for each kind of bound that rejects tokens or gives them weight 0 → what its
threshold limits. A cap on the weights keeps every token, so that no share of tokens can choose it."""
COLUMNS = ("correction", "kept", "clipped", "zeroed", "ESS")
WHERE_CHOSEN = "kept where chosen"
BUDGET_COLUMNS = ("what is limited", "threshold", WHERE_CHOSEN, *COLUMNS[1:])
_CLIPPED, _ESS = f"{100 * CLIPPED_LIMIT:g} %", f"{100 * ESS_LIMIT:g} %"
MEANINGS = {
    "threshold": "The upper one. If there is a lower one, too, it is the reciprocal or the negative of this one.",
    "kept": "Share of the tokens that teach something: their weight is above 0 and no rule rejects them.",
    WHERE_CHOSEN: "The same share on the steps that the threshold was chosen on.",
    "clipped": f"Share of the tokens whose weight is set to a threshold. Bad: above {_CLIPPED}, because then the "
    "thresholds decide, not the ratios.",
    "zeroed": "Share of the tokens that teach nothing: their weight is 0, or a rule rejects them. Bad: if the "
    f"thresholds of the weights alone zero more than {_CLIPPED}.",
    "ESS": f"(Σ w)²/(n Σ w²) over the kept tokens, with n all tokens. Bad: below {_ESS}, because then half of the "
    "batch is paid for nothing.",
}
"""Meanings of the columns of both tables. The limits are those of the glossary."""
NO_TEXT = "{system} cannot express it"
BY_LENGTH = "The same thresholds on shorter answers"
BY_LENGTH_IS = (
    "Kept share of the tokens if the same answers end after their first tokens. A limit on a token does "
    "not depend on the length. A limit on a product or a mean over the answer does, so longer answers need another "
    "threshold."
)
FIRST, WHOLE = "first {length:,}", "whole, up to {length:,}"
TAKE = "Correction to copy"
BY_BUDGET = "{what}, keeps {share}"
NOTHING_TO_TAKE = (
    "Every correction above is bad on this batch by one of its numbers, so there is no configuration to take. Look for "
    "the cause of the gap first, or open the bench and move a threshold."
)
OPEN = "Open it in the bench"
NOT_REACHED = "–"
WHICH_LEARNS = (
    "This table shows what a threshold costs, not whether training gets better. For that see the study on the Training "
    "page, or the Gradient page for a run with score sketches."
)

_SCOPES = {"all": "", "negative": ", if its advantage is negative", "outward": ", if the update moves it away"}


def limits(config: CorrectionConfig) -> str:
    """Return what a correction does, with its thresholds.

    >>> limits(CorrectionConfig(rollout_is="token", rollout_is_threshold=2.0))
    "Cap each token's weight at 2"
    >>> limits(CorrectionConfig(rollout_rs=(RejectionRule.named("seq_mean_k1", lower=0.999, upper=1.001),)))
    'Reject answers with a mean ratio outside 0.999 to 1.001'
    """
    parts = [_weights(config)] if config.rollout_is is not None else []
    parts += [_rejects(rule) for rule in config.rollout_rs]
    text = ", ".join(parts) or "no correction"
    return text[0].upper() + text[1:]


def _weights(config: CorrectionConfig) -> str:
    level, lower, upper = config.rollout_is, config.rollout_is_threshold_lower, config.rollout_is_threshold
    assert level is not None
    weight = LEVELS[level].title.replace("response", "answer")
    if config.rollout_is_mode == "mask":
        return f"zero {weight} {_outside(lower, upper)}"
    if upper == math.inf:
        return f"use {weight} without a cap" if lower is None else f"raise {weight} to {_short(lower)} or more"
    return f"cap {weight} at {_short(upper)}" if lower is None else f"clamp {weight} to {_range(lower, upper)}"


def _rejects(rule: RejectionRule) -> str:
    subject = "tokens" if rule.level == "token" else "answers"
    return f"reject {subject} with a {statistic(rule)} {_outside(rule.lower, rule.upper)}{_SCOPES[rule.applies_to]}"


def _outside(lower: float | None, upper: float) -> str:
    if lower is None:
        return f"above {_short(upper)}"
    return f"below {_short(lower)}" if upper == math.inf else f"outside {_range(lower, upper)}"


def _range(lower: float, upper: float) -> str:
    return f"{_short(lower)} to {_short(upper)}"


def _short(value: float) -> str:
    return short_number(value).removesuffix(".0").replace("-", "−")


def threshold(value: float | None) -> str:
    """Format a threshold with at most six digits, without the plus and the zeros of Python's exponents.

    >>> threshold(1.05432), threshold(7185000000.0)
    ('1.05432', '7.185e9')
    """
    return NOT_REACHED if value is None else short_exponent(f"{value:.6g}")


# --- is it normal? ---

NORMAL = "Is this gap normal?"
MEASURE = "Measure"
MEASURES: dict[str, Measure] = {"k3": "k3", "mean |d|": "abs"}
STRIP = (
    "Measured gaps, and yours",
    "Each point is a gap that somebody measured: point at it for the model and the source. Larger points are larger "
    "models, up to 1, up to 10, and more than 10 billion weights. A grey line joins the "
    "smallest and the largest size of a run. The green line is the selected step.",
)
BANDS = ("ratios within", "tokens", "answers")
BANDS_ARE = {
    "ratios within": "Distance of the ratio from 1.",
    "tokens": "Share of the tokens whose ratio is within the band.",
    "answers": "Share of the answers whose geometric mean of the token ratios is within the band.",
}
