"""Sentences of the page for a person's own data."""

from rlcorr.analysis.published import Measure

EXAMPLE = "You have not dropped a file yet. As an example, the page shows the recorded run {run}."
ALL_STEPS = "Over all recorded steps:"
KEEP = "Keep at least"
KEEPS = ("99 %", "95 %", "90 %", "80 %")
SUGGESTED = {
    "decoupled_token_is": "cap on each token's weight",
    "decoupled_token_icepop": "band of each token's weight",
    "decoupled_geo_rs": "geometric mean of an answer",
    "decoupled_k3_rs": "mean k3 of an answer",
    "skyrl_product_mask": "product of an answer",
}
"""Preset of `data.suggestions` → what its threshold limits."""
THRESHOLDS = "Thresholds for your budget"
THRESHOLDS_ARE = (
    "The tightest threshold of each kind that keeps this share. Chosen on step {chosen_on} and checked on step "
    "{unseen}, which was not used to choose."
)
THRESHOLDS_OF_ONE = (
    "The tightest threshold of each kind that keeps this share. The run has only one step, so there is no other step "
    "to check them on."
)
COLUMNS = ("what is limited", "threshold", "kept", "kept of the last step", "weights cut", "ESS of the kept")
MEANINGS = {
    "threshold": "The upper bound. If there is a lower bound, too, it is the reciprocal or the negative of this one.",
    "kept": "Share of the tokens that no rule rejects, on the steps that the threshold was chosen on. A token "
    "with weight 0 counts as kept.",
    "kept of the last step": "The same share on the last step, which was not used to choose.",
    "weights cut": "Share of the tokens whose weights are outside their bounds. A dash: there are no weights.",
    "ESS of the kept": "(Σ w)²/Σ w² over the kept tokens, as a share of all tokens, on the last step.",
}
BY_LENGTH = "The same thresholds on shorter answers"
BY_LENGTH_IS = (
    "Kept share of the tokens if the same answers are cut to their first tokens. A limit on a token does not depend on "
    "the length. A limit on a product or a mean over the answer does, so longer answers need another threshold."
)
CUT, WHOLE = "first {length:,}", "whole, up to {length:,}"
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
TAKE = "Take"
OPEN = "Open it in the bench"
NOT_REACHED = "–"
WHICH_LEARNS = (
    "This table shows what a threshold costs, not whether training gets better. For that see the study on the Training "
    "page, or the Gradient page for a run with score sketches."
)
