"""The page KL losses: the gradient of a KL estimator next to the true one, recorded and in an exact example."""

import math
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import state
import streamlit as st
from components.live_part import ANSWER, LiveContent, Note, Number, Slider, live_part, offered
from components.picture import Picture
from controls import strips
from controls.widgets import buttons
from data import sketches
from data.kl_example import DISTANCES, LOSSES, TARGETS, example
from data.recorded import Selection
from text.formatting import interval_ends, short, swatches
from torch import Tensor

from rlcorr.errors import UsageError
from rlcorr.figures import kl_losses as figures
from rlcorr.figures.canvas import WARM, Figure
from rlcorr.gradients.bootstrap import Interval
from rlcorr.strips.packing import Package, PictureStrip

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
NAMES = ("KL(policy‖reference), the true one", "KL(reference‖policy)", "the loss")


@dataclass(frozen=True)
class Shown:
    """What the page shows: a loss, a distance in the example, and a recorded position (0: the mean of all)."""

    loss: str
    distance: float
    position: float
    measured: sketches.Sketched | None
    """A step with the probabilities of the target, if the run has one."""
    target: str = "reference"


def show(selection: Selection) -> None:
    with st.container(horizontal=True, vertical_alignment="center"):
        buttons("kl_loss", "The loss", LOSSES)
        buttons("kl_target", "The recorded reference is", list(TARGETS))
        st.html(swatches(dict(zip(NAMES, [*figures.COLOURS.values(), WARM], strict=True))), width="content")
    target = state.get("kl_target")
    measured = measured_at(selection.run, selection.step, target)
    position = state.get("kl_position")
    if measured is not None and position > len(sketches.kl_arrows(measured, LOSSES[0], TARGETS[target])[0]):
        position = 0.0  # it is one of another run
    shown = Shown(state.get("kl_loss"), state.get("kl_distance"), position, measured, target)
    live_part(sliders(shown), content(shown), source=source(selection.source), resets={})
    st.caption(
        f"This run has no probabilities of that {target} at that step, so only the example is shown."
        if measured is None
        else MEASURED
    )


def source(recorded: str) -> str:
    """Return the source of the pictures, for the source of the recorded ones."""
    return f"recorded: {recorded}\nexample: five tokens, exact"


def measured_at(run: Path, step: int | None, target: str = "reference") -> sketches.Sketched | None:
    """Return the step, if all next tokens under this policy were recorded at some positions."""
    if step is None:
        return None
    try:
        measured = sketches.sketched(run, step)
        sketches.kl_arrows(measured, LOSSES[0], TARGETS[target])
    except UsageError:  # the page says that nothing was recorded
        return None
    return measured


def sliders(shown: Shown) -> list[Slider]:
    """Return the sliders of `ranges`, with their strips."""
    made, at = [], {"kl_distance": shown.distance, "kl_position": shown.position}
    for key, (label, values) in ranges(shown).items():
        version = repr((key, replace(shown, measured=None), shown.measured and shown.measured.identity))
        made.append(offered(key, label, values, at[key], partial(strip, shown, key, values), version))
    return made


def ranges(shown: Shown) -> dict[str, tuple[str, tuple[float, ...]]]:
    """Return label and values of the distance and, if there are recorded positions, of the position."""
    labels = {"kl_distance": ("Distance of the policy from the reference, in the example", DISTANCES)}
    if shown.measured is not None:
        count = len(sketches.kl_arrows(shown.measured, shown.loss, TARGETS[shown.target])[0])
        labels["kl_position"] = f"Recorded position (0: the mean of all {count})", tuple(map(float, range(count + 1)))
    return labels


def content(shown: Shown) -> LiveContent:
    """Return the pictures of a loss at the recorded positions and in the example, and numbers of the recorded ones."""
    pictures = {"kl_example": _example(shown)}
    if shown.measured is not None:
        pictures = {"kl_arrows": _recorded(shown)} | pictures
    curves = {name: figures.over_distance(DISTANCES, lines, shown.distance, y) for name, y, lines in _lines(shown.loss)}
    row = {key: Picture(figure, *PICTURES[key]) for key, figure in (pictures | curves).items()}
    return LiveContent(_numbers(shown), [row], texts={ANSWER: _answer(shown)}, notes=[Note(WHOM)])


def strip(shown: Shown, key: str, values: tuple[float, ...]) -> Package:
    """Return what one of the sliders changes, for each of its values."""
    of_values = [replace(shown, **{key.removeprefix("kl_"): value}) for value in values]
    texts, numbers = {ANSWER: [_answer(one) for one in of_values]}, [_numbers(one) for one in of_values]
    if key == "kl_position":
        pictures = {"kl_arrows": PictureStrip(figures=[str(_recorded(one).to_json()) for one in of_values])}
    else:
        lines = [figures.distance_line(value) for value in values]
        pictures = {"kl_example": PictureStrip(figures=[str(_example(one).to_json()) for one in of_values])}
        pictures |= {name: PictureStrip(shapes=lines) for name, *_ in _lines(shown.loss)}
    return strips.package({}, numbers, texts, pictures)


def _example(shown: Shown) -> Figure:
    return figures.arrows(shown.loss, *example(shown.loss, shown.distance).gradients)


def _recorded(shown: Shown) -> Figure:
    return figures.arrows(shown.loss, *_gradients(shown))


def _gradients(shown: Shown) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients at the recorded position, or in the example if there is none."""
    if shown.measured is None:
        return example(shown.loss, shown.distance).gradients
    index = int(shown.position) - 1
    policy, reference, loss = sketches.kl_arrows(shown.measured, shown.loss, TARGETS[shown.target])
    if index < 0:
        return policy.mean(0), reference.mean(0), loss.mean(0)
    return policy[index], reference[index], loss[index]


def _lines(loss: str) -> list[tuple[str, str, dict[str, list[float]]]]:
    """Return the two curves over the distance: key of the picture, title of the axis, and the lines by their names."""
    examples = [example(loss, distance) for distance in DISTANCES]
    names = (*figures.COLOURS, loss)
    values = [(one.policy, one.reference, one.value) for one in examples]
    columns = {"value": values, "slope": [one.slopes for one in examples]}
    return [
        (f"kl_{title}s", title, dict(zip(names, map(list, zip(*rows, strict=True)), strict=True)))
        for title, rows in columns.items()
    ]


def _numbers(shown: Shown) -> dict[str, Number]:
    """Return the numbers of the recorded positions, with intervals over them if all are shown."""
    if shown.measured is None:
        return {}
    report, (angle, length) = sketches.kl_loss(shown.measured, shown.loss, TARGETS[shown.target]), _turn(shown)
    of_all = shown.position == 0
    texts = {
        "Angle": ("–", "") if angle is None else (f"{angle:.0f}°", _degrees(report.cosine) if of_all else ""),
        "Length": ("0", "") if angle is None else (short(length), interval_ends(report.length) if of_all else ""),
    }
    if not math.isnan(report.noise.value):
        texts["Noise of a token"] = short(report.noise.value), interval_ends(report.noise)
    return {label: Number(text, NUMBERS[label], beside) for label, (text, beside) in texts.items()}


def _turn(shown: Shown) -> tuple[float | None, float]:
    """Return the angle between the loss's gradient and the true one in degrees, None without a length; and the length.

    The length is in units of the true one.
    """
    policy, _, loss = _gradients(shown)
    along, across = figures.in_plane(loss, policy)
    length = math.hypot(along, across)
    return (math.degrees(math.atan2(across, along)) if length > figures.NO_LENGTH else None), length


def _degrees(cosine: Interval) -> str:
    """Return the angles of an interval of cosines."""
    low, high = (math.degrees(math.acos(min(1.0, max(-1.0, end)))) for end in (cosine.high, cosine.low))
    return f"{low:.0f}° to {high:.0f}°"


def _answer(shown: Shown) -> str:
    """Return sentences about where the loss pulls, and about what it reports in the example."""
    of_example, (angle, length) = example(shown.loss, shown.distance), _turn(shown)
    value, kl = short(of_example.value), short(of_example.policy)
    if angle is None:
        pull = f"As a loss, {shown.loss} pulls nowhere: on average its gradient is 0."
    elif angle < 0.5:
        pull = f"As a loss, {shown.loss} has the true gradient."
    else:
        pull = f"As a loss, {shown.loss} pulls {angle:.0f}° away from the true gradient, {short(length)} times as hard."
    if math.isclose(of_example.value, of_example.policy, rel_tol=1e-6):
        return f"{pull} As a value it is right: {value} in the example."
    return f"{pull} As a value it is too large: {value} in the example, where the KL is {kl}."
