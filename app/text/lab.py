"""Sentences, handles and scenarios of the Lab."""

from dataclasses import asdict, dataclass, field
from typing import Any

from rlcorr.figures.lab import UPDATE
from rlcorr.lab import Experiment


@dataclass(frozen=True)
class Handle:
    """A slider: its label, its values, and what it means."""

    label: str
    values: tuple[float, ...]
    help: str = ""


AGES = (0, 2, 4, 8, 16, 32, 64)
RATES = {"adamw": (0.005, 0.01, 0.02, 0.05, 0.1), "sgd": (0.5, 1.0, 2.0, 5.0, 10.0)}
"""Columns of the map. The two optimizers need different learning rates."""
USUAL_RATE = {"adamw": 0.05, "sgd": 5.0}
HANDLES = {
    "lag": Handle("Age of the sampler, in updates", (0, 1, 2, 4, 8, 12, 16, 24, 32, 48, 64)),
    "learning_rate": Handle("Learning rate", tuple(sorted({0.002, 0.2, 0.03, 20.0, *RATES["adamw"], *RATES["sgd"]}))),
    "threshold": Handle(
        "Threshold",
        (0.25, 0.3, 0.4, 0.5, 0.6, 0.8, 1, 1.2, 1.5, 2, 2.5, 3, 4, 5, 6, 8, 10, 12, 16, 20, 24, 32, 48, 64),
        "Above it a weight is cut, or becomes 0.",
    ),
    "noise": Handle("Noise of the sampler", (0, 0.25, 0.5, 1, 1.5, 2, 3, 4), "Standard deviation on its logits."),
    "length": Handle("Tokens of an answer", (1, 2, 3, 4, 5, 6, 7, 8), "All of them must be right."),
    "top_p": Handle("top-p of the sampler", (0.5, 0.7, 0.8, 0.9, 0.95, 0.99, 1), "1: nothing is cut."),
    "penalty_coef": Handle("Coefficient of the KL penalty", (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1, 3)),
    "steps": Handle("Updates", (40, 80, 120, 200, 400)),
}
CHOICES = {
    "ratio": (
        "Weights",
        {
            "none": "none",
            "token": "each token's ratio",
            "sequence": "the product of an answer",
            "geometric": "its geometric mean",
        },
    ),
    "bound": (
        "Outside the threshold",
        {
            "cap": "cut to it",
            "mask": "0",
            "band": "0, also below its inverse",
            "reject": "rejected, and inside all count alike",
        },
    ),
    "penalty": ("KL penalty to the start", {name: name for name in ("none", "k1", "k2", "k3", "k3+")}),
    "optimizer": ("Optimizer", {"adamw": "AdamW", "sgd": "SGD"}),
}
FIELDS = {name: value for name, value in asdict(Experiment()).items() if name != "seeds"}
"""Name of a setting in the address → its default."""

_ENDS = "Without a correction the reward ends at {before}, with {named} at {after}"
WORDS: dict[str, Any] = {
    "update": UPDATE,
    "training": "Training in your browser …",
    "playing": "Update {step} of {steps}.",
    "uncorrected": "Without a correction the reward ends at {before}.",
    "better": f"{_ENDS}: better by {{gain}} over {{seeds}} seeds.",
    "worse": f"{_ENDS}: worse by {{gain}} over {{seeds}} seeds.",
    "same": f"{_ENDS}: {{seeds}} seeds show no difference, {{gain}}.",
    "corrections": {
        f"{ratio} {bound}": Experiment(ratio=ratio, bound=bound, threshold=999).named().replace("999", "{threshold}")
        for ratio in ("token", "sequence", "geometric")
        for bound in ("cap", "mask", "band", "reject")
    },
    "toy": "A toy, trained in your browser: fewer than 2,000 weights answer 36 prompts.",
    "play": "▶ Play", "pause": "❚❚ Pause", "step": "One update", "reset": "To the start", "another": "Other seeds",
    "noWorkers": "This browser starts no Web Workers, so the page trains between two redraws, and more slowly.",
    "failed": "A Web Worker of this page has failed. The others go on; without any, the page trains by itself.",
}  # fmt: skip
"""Key of `lab_part.js` → what the page says."""
PICTURES = {
    "curves": (
        "Reward while it learns",
        "The mean of 8 seeds, and the interval that holds it in 95 of 100 such experiments.",
    ),
    "over_threshold": ("Where it ends, over the threshold", "The last ten updates. Drag the line."),
    "ess": ("Effective sample size", "How many of the answers count, as a share."),
    "clipped": ("Weights that the threshold changes", "As a share of the tokens."),
    "mean_ratio": ("Mean ratio", "Mean of r. Its expectation is 1, unless the sampler never draws some tokens."),
    "k3": ("Gap between sampler and policy", "Mean of r − 1 − log r."),
    "kl": (
        "Distance from the start",
        "The exact KL divergence of an answer. Purple: what the chosen penalty shows of it, per token.",
    ),
    "gains": (
        "What this correction adds, over age and learning rate",
        "The reward at the end minus that without a correction; 4 seeds. A click goes there.",
    ),
}
"""Key of a picture → title and caption."""


@dataclass(frozen=True)
class Scenario:
    """A setting worth seeing."""

    title: str
    text: str
    settings: dict[str, Any] = field(default_factory=dict)


OPEN = "Open"
SCENARIOS_TITLE = "Settings worth seeing"
SCENARIOS = (
    Scenario("Healthy", "The sampler has the policy's weights. Nothing needs a correction.", {"lag": 0}),
    Scenario(
        "Stale",
        "Weights 16 updates old break training at this learning rate. A cap heals it.",
        {"lag": 16, "threshold": 1.0},
    ),
    Scenario(
        "Stale and slow",
        "The same age at a tenth of the learning rate breaks nothing.",
        {"lag": 16, "learning_rate": 0.005},
    ),
    Scenario(
        "Coarse sampler",
        "Noise on the sampler's logits, as coarse rounding makes it, costs some reward. No threshold gets it back.",
        {"lag": 0, "noise": 2.0},
    ),
    Scenario(
        "Cut by top-p",
        "The sampler never draws rare tokens, and reports log-probs as if it did. Every ratio is 1, so no threshold "
        "sees it.",
        {"lag": 0, "top_p": 0.8},
    ),
    Scenario(
        "Rate too high",
        "Old weights at twice the learning rate: a cap of 2 makes it worse, and no cap brings it near 0.8.",
        {"lag": 32, "learning_rate": 0.1, "steps": 200},
    ),
    Scenario(
        "Long answers: the product",
        "Eight ratios multiplied: few answers carry the gradient.",
        {"length": 8, "ratio": "sequence"},
    ),
    Scenario(
        "Long answers: the geometric mean",
        "The same gap, and every answer counts alike.",
        {"length": 8, "ratio": "geometric"},
    ),
    Scenario(
        "k1 as a penalty",
        "On average its gradient is 0: the policy drifts as far as without it.",
        {"lag": 0, "penalty": "k1", "penalty_coef": 1.0},
    ),
    Scenario(
        "k2 as a penalty",
        "Its gradient is that of KL(π‖start): the policy stays near.",
        {"lag": 0, "penalty": "k2", "penalty_coef": 1.0},
    ),
    Scenario(
        "k3 as a penalty",
        "Its gradient is that of KL(start‖π): at the same coefficient the policy stays nearer, and learns less.",
        {"lag": 0, "penalty": "k3", "penalty_coef": 1.0},
    ),
    Scenario(
        "k1 with a stale sampler",
        "Now its gradient is not 0 on average: the policy runs away, and the reward with it.",
        {"lag": 16, "penalty": "k1", "penalty_coef": 0.3},
    ),
    Scenario(
        "SGD", "Steps that grow with the gradient, where AdamW's do not.", {"optimizer": "sgd", "learning_rate": 5.0}
    ),
)
CLAIMS_TITLE = "What it does not claim"
CLAIMS = (
    "The network has fewer than 2,000 weights, and no digit of an answer depends on another. The best threshold here "
    "is not the best threshold of your run."
)
CARRIED_TITLE = "What carries over, and what did not"
CARRIED = (
    "Before they were compared, the Lab predicted the order of the corrections in the recorded studies, by fixed rules "
    "(runs/study/lab.md). Of the {pairs} differences that it predicted, the studies confirm {hits}, contradict "
    "{misses}, and cannot tell {unknown}. Of those that they decide, {share} are hits (95 % of resamples of the "
    "studies: {low} to {high})."
)
CARRIED_HEAD = ["study", "corrections", "predicted", "hits", "misses", "not known", "rank correlation"]
