"""What the Mismatch page says."""

from rlcorr.analysis.published import rounding
from rlcorr.analysis.symptoms import Pattern, short

ALSO = "Also: {sentence}"

_MEND = ("Mend this before you choose a correction. Its tokens show where it is.", "tokens", "See the tokens")
NEXT: dict[Pattern, tuple[str, str, str]] = {
    "not finite": _MEND,
    "identical": (
        "If two programs computed the two sides, one was probably copied from the other: check what was recorded.",
        "training", "See where the run comes from",
    ),
    "shift by one": _MEND,
    "padding": _MEND,
    "top-p mass": (
        "Sample without top-p and top-k, or take both log-probs from the same distribution.",
        "tokens", "See the tokens",
    ),
    "temperature": ("Use one temperature for sampling and for both log-probs.", "tokens", "See the tokens"),
    "stale tensor": _MEND,
    "clean": ("The log-probs give no reason to correct.", "bench", "See what a bound would cost"),
    "precision": (
        "The log-probs show no more than rounding: choose a bound that leaves it alone.", "bench", "Choose a bound",
    ),
    "undecided": (
        "Measure once more, as it says. Then choose a bound, and see what it costs.",
        "bench", "Choose a bound",
    ),
    "beyond rounding": (
        "Look at the causes that it names. Then choose a bound, and see what it costs.", "bench", "Choose a bound",
    ),
}  # fmt: skip
"""What `triage` finds → (what to do, the view that helps, the text of its link)."""

SIZES = {
    "Mean |Δ|": ("abs_log_ratio", "Mean difference of the two log-probs, without its sign."),
    "k3": (
        "k3",
        "Mean of eᵈ − 1 − d, which estimates the KL divergence. Rounding to bfloat16 has been measured to make up to "
        f"{short(rounding('bfloat16')[1])}.",
    ),
    "Mean e^|Δ|": (
        "mult_error",
        "The factor between the two probabilities, averaged. NeMo RL expects a bug above 1.05.",
    ),
    "Mean ratio": (
        "mean_ratio",
        "It is 1, but for noise, if the engine's log-probs are of the policy that sampled, and nothing was cut off.",
    ),
}
"""Label on the page → (name in a finding's numbers, what it means)."""

METHODS = "Methods to draw"
EXPLAINED = "What these methods do"

ACCEPTANCE_TITLE = "Both probabilities, and what each method leaves alone"
ACCEPTANCE = (
    "Tokens by the probability that the engine (across) and the trainer (up) gave them. A method leaves a token alone "
    "between its two lines; beyond a solid line it rejects the token, beyond a dashed one it caps the weight."
)
MAGNIFIED_TITLE = "The difference, magnified"
MAGNIFIED = (
    "The same tokens and lines, with the ratio (up) over the engine's probability (across). The outermost rows hold "
    "everything beyond."
)

PICTURES = {
    "tail": (
        "The tail",
        "How many tokens differ by at least so much. A line that falls slowly is a heavy tail; one colour above the "
        "other is a mismatch with a direction.",
    ),
    "position": (
        "Along the response",
        "The ratio over the position in the response. A band that opens is an error that builds up; a mean away from 1 "
        "is more than noise. Positions that fewer than five responses reach are left out.",
    ),
    "tokens": (
        "Tokens that add most",
        "Token ids by their share of Σ|log r|. Warm: likelier in the trainer; cool: likelier in the engine.",
    ),
    "tokens_mean": (
        "Tokens that differ most",
        "Token ids by their mean |log r|, of those that occur at least five times. Some that stand out point to rows "
        "of the output head.",
    ),
    "length": (
        "Over the length of the response",
        "One point per response. Inside the dotted cone lies what independent noise of this size leaves; the lines are "
        "usual bounds on the product and on the geometric mean of the ratios.",
    ),
    "lag": ("By age of the weights", "Mean |log r| by how many updates older the weights were that sampled."),
}
"""(title, caption) per picture."""


NO_IDS = "Which tokens differ is not known: the step holds no token ids."


def one_lag(lag: int) -> str:
    if lag == 1:
        return "All responses of this step were sampled by weights one update older than those that scored them."
    return f"All responses of this step were sampled by weights {lag} updates older than those that scored them."
