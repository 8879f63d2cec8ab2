"""What the gradient view says."""

from rlcorr.gradients.kl_losses import Target

INTRO = (
    "What the correction does to the gradient of this step, measured beside the on-policy gradient: from random "
    "projections of every token's score, with 95 % bootstrap intervals over the sequences."
)
NUMBERS = {
    "Bias": "‖E[g] − on-policy gradient‖ over its length. 0 inside the interval: not to be told from noise.",
    "Noise": "Standard deviation of the gradient over batches of this size, over the length of the on-policy gradient.",
    "Error": "√(bias² + noise²): how far one step's gradient is from the on-policy one, as a root mean square over "
    "batches, in lengths of the on-policy one. Over many steps noise averages out, bias does not.",
    "Cosine": "Between the expected gradient and the on-policy one.",
    "Step length": "What the step along the on-policy gradient is multiplied by.",
    "Sequence ESS": "Effective sample size: (Σ w)²/Σ w² over the sequences, as a share of them.",
}
RECORDED = (
    "On this step, over the bound that is dragged (dotted): bias, noise and both together. Green: the smallest error; "
    "grey: the 95 % interval of the best bound, over bootstrap samples."
)
TOY = (
    "The same correction, exactly: all 364 responses over four tokens, log-ratios as wide as here ({gap:.2g}), batches "
    "of {size}. Nothing is sampled, so there are no bands."
)
TOY_SOURCE = "toy, with log-ratios as wide as in {source}"
PLANE = (
    "Every preset on this step: noise to the right, bias upwards, both in units of the on-policy gradient. The error "
    "is the distance from the corner; on the dashed arc it is 1, as for a gradient that is always 0."
)
PARTS = {
    "weights": "from exact product weights to this level of weights, or none",
    "truncation": "the bounds on the weights",
    "rejection": "the rules",
    "denominator": "dividing by kept tokens, normalised weights",
    "noise": "the standard deviation of the whole",
}
DECOMPOSED = "Where the gradient leaves the exact one, step by step; each measured on the same responses."
KL = (
    "KL penalties as losses, on {places} recorded places where all next tokens are known, so that the expectation over "
    "tokens is exact. k2 follows ∇KL(π_θ‖target); k3 follows the other KL, and k1 in expectation nothing at all. The "
    "number above the bars is the length of the gradient over that of ∇KL(π_θ‖target)."
)
KL_NUMBERS = {
    "cosine": "Between the loss's expected gradient and ∇KL(π_θ‖target).",
    "length": "Of the loss's expected gradient, over that of ∇KL(π_θ‖target).",
    "noise of a token": "Standard deviation of the gradient of one sampled token, in units of ∇KL(π_θ‖target).",
}
TARGETS: dict[str, Target] = {"the reference model": "ref", "the engine's policy": "rollout"}
NO_PLACES = "This run recorded no distribution of {target} at that step, so there is no truth to compare with."
NOISE_REFERENCE = (
    "The on-policy gradient of this step cannot be told from noise, so it is no unit. Record more of it with "
    "--sketch.reference-prompts."
)
GO = "Show step {step}"
