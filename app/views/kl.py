"""The page KL losses: the gradient of a KL estimator next to the true one, recorded and in an exact example."""

import math
from dataclasses import dataclass, replace
from pathlib import Path

import state
import streamlit as st
from components.live_part import ANSWER, LiveContent, Note, Number, Picture, Slider, live_part
from components.offers import offer
from controls import strips
from controls.choosing import buttons
from data import sketches
from data.kl_example import DISTANCES, LOSSES, example
from data.recorded import Selection
from text import kl as say
from text.formatting import swatches
from text.gradient import ends, short
from torch import Tensor

from rlcorr.errors import UsageError
from rlcorr.figures import kl_losses as figures
from rlcorr.figures.canvas import WARM, Figure
from rlcorr.strips.packing import Package, PictureStrip, pack


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
        buttons("kl_loss", say.PICK, LOSSES)
        buttons("kl_target", say.TARGET, list(say.TARGETS))
        st.html(swatches(dict(zip(say.NAMES, [*figures.COLOURS.values(), WARM], strict=True))), width="content")
    target = state.get("kl_target")
    measured = measured_at(selection.run, selection.step, target)
    shown = Shown(state.get("kl_loss"), state.get("kl_distance"), state.get("kl_position"), measured, target)
    live_part(sliders(shown), content(shown), source=say.SOURCE.format(source=selection.source), resets={})
    st.caption(say.NOT_RECORDED.format(target=target) if measured is None else say.MEASURED)


def measured_at(run: Path, step: int | None, target: str = "reference") -> sketches.Sketched | None:
    """Return the step, if it has the probabilities of all next tokens under this policy."""
    if step is None:
        return None
    try:
        measured = sketches.sketched(run, step)
    except UsageError:  # the page says that nothing was recorded
        return None
    tokens = measured.sketch.next_tokens
    recorded = {} if tokens is None else {"reference": tokens.ref_log_probs, "sampler": tokens.rollout_log_probs}
    return None if recorded.get(target) is None else measured


def sliders(shown: Shown) -> list[Slider]:
    """Return the sliders of `ranges`, with their strips."""
    made = []
    for key, (label, values) in ranges(shown).items():
        version = repr((key, replace(shown, measured=None), shown.measured and shown.measured.identity))
        address = offer("strips", key, lambda key=key, values=values: pack(strip(shown, key, values)), version=version)
        made.append(Slider(key, label, values, state.get(key), state.generation(key), address))
    return made


def ranges(shown: Shown) -> dict[str, tuple[str, tuple[float, ...]]]:
    """Return label and values of the distance and, if there are recorded positions, of the position."""
    labels = {"kl_distance": (say.DISTANCE_SLIDER, DISTANCES)}
    if shown.measured is not None:
        count = len(sketches.next_tokens(shown.measured).log_probs)
        labels["kl_position"] = say.POSITION_SLIDER.format(count=count), tuple(map(float, range(count + 1)))
    return labels


def content(shown: Shown) -> LiveContent:
    """Return the pictures of a loss at the recorded positions and in the example, and numbers of the recorded ones."""
    pictures = {"kl_example": _example(shown)}
    if shown.measured is not None:
        pictures = {"kl_arrows": _recorded(shown)} | pictures
    curves = {name: figures.over_distance(DISTANCES, lines, shown.distance, y) for name, y, lines in _lines(shown.loss)}
    row = {key: Picture(figure, *say.PICTURES[key]) for key, figure in (pictures | curves).items()}
    return LiveContent(_numbers(shown), [row], texts={ANSWER: _answer(shown)}, notes=[Note(say.WHOM)])


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
    policy, reference, loss = sketches.kl_arrows(shown.measured, shown.loss, say.TARGETS[shown.target])
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
    report, (angle, length) = sketches.kl_loss(shown.measured, shown.loss, say.TARGETS[shown.target]), _turn(shown)
    of_all = shown.position == 0
    texts = {
        "Angle": ("–", "") if angle is None else (f"{angle:.0f}°", say.degrees(report.cosine) if of_all else ""),
        "Length": ("0", "") if angle is None else (short(length), ends(report.length) if of_all else ""),
        "Noise of a token": (short(report.noise.value), ends(report.noise)),
    }
    return {label: Number(text, say.NUMBERS[label], beside) for label, (text, beside) in texts.items()}


def _turn(shown: Shown) -> tuple[float | None, float]:
    """Return the angle between the loss's gradient and the true one in degrees, None without a length; and the length.

    The length is in units of the true one.
    """
    policy, _, loss = _gradients(shown)
    along, across = figures.in_plane(loss, policy)
    length = math.hypot(along, across)
    return (math.degrees(math.atan2(across, along)) if length > figures.NO_LENGTH else None), length


def _answer(shown: Shown) -> str:
    of_example = example(shown.loss, shown.distance)
    return say.answer(shown.loss, *_turn(shown), of_example.value, of_example.policy)
