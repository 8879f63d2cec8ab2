"""What the page for a person's own data says."""

EXAMPLE = "Nothing has been dropped yet. Until then this is the recorded run {run}, with the same questions answered."
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
"""Preset whose bounds are moved → what they bound: one of each kind."""
BOUNDS = "Bounds that keep so much"
BOUNDS_ARE = (
    "The tightest of each kind, chosen on step {chosen_on} and checked on step {unseen}, which had no part in that."
)
BOUNDS_OF_ONE = "The tightest of each kind. The run has one step, so there is no other to check them on."
COLUMNS = ("what is bounded", "threshold", "kept", "kept of the last step", "weights cut", "ESS of the kept")
MEANINGS = {
    "threshold": "Upper bound; a bound on both sides has its reciprocal, or its negative, as the lower one.",
    "kept": "Share of the tokens that pass all bounds, on the steps that the bounds were chosen on.",
    "kept of the last step": "The same on the step that had no part in the choice.",
    "weights cut": "Share of the tokens whose weights lie outside their bounds. A dash: nothing is weighed.",
    "ESS of the kept": "(Σ w)²/Σ w² over what is kept, as a share of all tokens, on the last step.",
}
TAKE = "Take"
OPEN = "Open it in the bench"
NOT_REACHED = "–"
WHICH_LEARNS = (
    "What is kept is a price, not a profit: which bound learns most, these log-probs cannot say. A run with score "
    "sketches can, on the Gradient page."
)
