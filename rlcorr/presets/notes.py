"""Texts that several presets share: their papers, and the situations in which they fail."""

TIS = "truncated importance sampling; Yao et al., 2025, fengyao.notion.site/off-policy-rl"
SCORE_CENTERING = "score centering; arXiv:2609.20807"
MIS = "masked importance sampling; Liu, Li et al., 2025, yingru.notion.site"
ICEPOP = "IcePop; Ring-1T, arXiv:2510.18855"
KPOP = "KPop; 2026, ringtech.notion.site/kpop"
TRM = "trust region masking; Li et al., arXiv:2512.23075"
DPPO = "DPPO; Qi et al., arXiv:2602.04879"
VACO = "VACO; arXiv:2603.01365"
SAO = "direct double-sided importance sampling; SAO, arXiv:2607.07508"
CTPO = "CTPO; Zhang et al., arXiv:2605.07331"
OPSM = "off-policy sequence masking; DeepSeek-V3.2, arXiv:2512.02556"

FAILURES = {
    "no_correction": "any mismatch: nothing is corrected",
    "ppo_clip": "large mismatch: a token whose ratio is outside the clip before the update gets no gradient",
    # --- bounds on single tokens ---
    "token_cap": "large mismatch: all ratios beyond the cap get the same weight, which biases the gradient",
    "token_band": "rare but informative tokens are outside the band, so they are never trained on",
    "probability_difference": "rare tokens: if both probabilities are small, even a huge ratio passes",
    # --- products of ratios ---
    "sequence_cap": "long sequences: the product of many ratios leaves any fixed bound, so most weights equal it",
    "sequence_band": "long sequences: the product of many ratios leaves any fixed band, so most sequences are rejected",
    "sequence_masked_above": "long sequences: products above the threshold get weight 0, and those near 0 hardly count",
    "product_upper_bound": "long sequences: products above the threshold are rejected, while those near 0 all pass",
    # --- geometric means ---
    "tight_band": "noisy samplers: ±0.1 % on the geometric mean rejects nearly everything in bf16 or with experts",
    "tight_band_uncapped": (
        "noisy samplers: such a narrow band rejects nearly everything, and the kept tokens have weights without a cap"
    ),
    "geometric_mean_rule": "a few broken tokens in a long sequence: the geometric mean hides them",
    "geometric_mean_weight": "long sequences: their geometric mean is near 1, so the weight corrects almost nothing",
    # --- mean divergences ---
    "mean_divergence": "one very unlikely token can lift the mean of a short sequence over the limit",
    "mean_divergence_uncapped": (
        "answers with a few rare tokens are rejected as a whole, and the kept ones have weights without a cap"
    ),
    "mean_factor": (
        "one very unlikely token can lift the mean of even a long sequence over the limit: e^10 among 10 000 is enough"
    ),
    # --- vetoes ---
    "veto": "long sequences: any single token can get the whole sequence rejected",
    "veto_alone": "ordinary mismatch: only sequences with a broken token are rejected, and nothing else is corrected",
    # --- rules for negative advantages only ---
    "negative_only": "mismatch in successes: only sequences with a negative advantage are checked",
    "tight_negative_only": (
        "noisy samplers: a mean log-ratio of −0.0001 rejects a failure, so few failures are ever trained on"
    ),
    # --- losses ---
    "score_centering": (
        "large mismatch: only the mean drift is subtracted, and no token is weighted, so the rest of the bias remains"
    ),
    "drpo": "large mismatch: probabilities differ by less than 1, so with 12.5 no gradient changes by more than 8 %",
    "vespo": "long sequences: the product of their ratios is far from 1, and then almost no token is trained on",
    "fipo": (
        "large mismatch: later log-ratios of one sign are taken for influence, so early weights equal their bound"
    ),
    "ctpo": (
        "mismatch with a bias: the product of ratios drifts faster than its bounds grow, so the late tokens of long "
        "sequences are clipped"
    ),
    "cppo": "sequences that start with a few large differences: these use up the budget, and the rest is dropped",
}
"""Kind of correction → the situation in which it fails, and what happens then. The views add the full stop."""
