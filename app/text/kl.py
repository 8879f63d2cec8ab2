"""Sentences of the page KL losses."""

import math

from rlcorr.gradients.bootstrap import Interval
from rlcorr.gradients.kl_losses import Target
from text.gradient import short

LOSS, DISTANCE = "k3", 3.0
TARGETS: dict[str, Target] = {"reference": "ref", "sampler": "rollout"}
"""Name on the page → name in the library: the recorded policy that stands for the reference."""
TARGET = "The recorded reference is"
MOST_POSITIONS = 16
"""A recorded step has the probabilities of all next tokens at so many positions, or none."""
PICK = "The loss"
DISTANCE_SLIDER = "Distance of the policy from the reference, in the example"
POSITION_SLIDER = "Recorded position (0: the mean of all {count})"
PICTURES = {
    "kl_arrows": (
        "Its gradient at the recorded positions",
        "Each arrow is a gradient. Angles are those in all weights. Dotted: longer than drawn.",
    ),
    "kl_example": ("Its gradient in the example", "The same in the five logits of the example, at this distance."),
    "kl_values": ("What it reports, in the example", "Its mean over tokens that the policy samples. Drag the line."),
    "kl_slopes": ("Where it pulls, in the example", "How fast each grows as the policy moves on: the pull backwards."),
}
"""Key → title and caption."""
NUMBERS = {
    "Angle": "Between the expected gradient of the loss and that of KL(policy‖reference), at the recorded positions.",
    "Length": "Length of the expected gradient, divided by that of the true one, at the recorded positions.",
    "Noise of a token": "Standard deviation of the gradient of one sampled token, in units of the true gradient's "
    "length. All recorded positions together.",
}
NO_PULL = "As a loss, {loss} pulls nowhere: on average its gradient is 0. "
SAME_PULL = "As a loss, {loss} has the true gradient. "
OTHER_PULL = "As a loss, {loss} pulls {angle}° away from the true gradient, {length} times as hard. "
SAME_VALUE = "As a value it is right: {value} in the example."
OTHER_VALUE = "As a value it is too large: {value} in the example, where the KL is {kl}."
SOURCE = "recorded: {source}\nexample: five tokens, exact"
WHOM = (
    "**Whom this concerns.** `low_var_kl` in verl's actor loss is k3, and so is the penalty of TRL's GRPO trainer with "
    "beta above 0. As a loss use k2, or k3+, which reports k3 and pulls like k2; verl has both. Plain k3 is good for "
    "measuring. KL(policy‖reference), over the policy's own tokens, is also called the reverse KL, and "
    "KL(reference‖policy) the forward KL."
)
MEASURED = (
    "At the recorded positions the probabilities of all next tokens are known, so the mean over tokens is exact; the "
    "95 % intervals are over the positions. The example has five tokens, and nothing is sampled."
)
NOT_RECORDED = "This run has no probabilities of that {target} at that step, so only the example is shown."
COLOURS = (
    "Green: the gradient of KL(policy‖reference), the true one. Violet: of KL(reference‖policy). Orange: of the loss."
)
NAMES = ("KL(policy‖reference), the true one", "KL(reference‖policy)", "the loss")


def answer(loss: str, angle: float | None, length: float, value: float, kl: float) -> str:
    """Return sentences about where a loss pulls, and about what it reports in the example.

    Args:
        loss: The estimator.
        angle: Degrees between its gradient and the true one; None if it has no length.
        length: That of its gradient, in units of the true one.
        value: What it reports in the example.
        kl: KL(policy‖reference) there.
    """
    pull = NO_PULL if angle is None else SAME_PULL if angle < 0.5 else OTHER_PULL
    said = SAME_VALUE if math.isclose(value, kl, rel_tol=1e-6) else OTHER_VALUE
    numbers = {"angle": "" if angle is None else f"{angle:.0f}", "length": short(length)}
    return (pull + said).format(loss=loss, value=short(value), kl=short(kl), **numbers)


def degrees(cosine: Interval) -> str:
    """Return the angles of an interval of cosines."""
    low, high = (math.degrees(math.acos(min(1.0, max(-1.0, end)))) for end in (cosine.high, cosine.low))
    return f"{low:.0f}° to {high:.0f}°"
