"""The effect of a correction on the gradient of one step, over its first bound and over the batch size."""

from collections import Counter
from dataclasses import dataclass, replace
from functools import cache

from components.live_part import ANSWER, LiveContent, Number, Picture
from data import sketches
from data.bounds import Bound, bounds_of, is_first, slider_values_of
from data.names import BETWEEN, preset_title
from data.sketches import Sketched
from text import gradient as say
from text.formatting import plain

from live import strips
from rlcorr import CorrectionConfig
from rlcorr.errors import UsageError
from rlcorr.figures import bias_noise, gradients
from rlcorr.figures.canvas import Figure
from rlcorr.gradients.bootstrap import Interval
from rlcorr.gradients.decomposition import Decomposition
from rlcorr.gradients.progress import Choice, units_needed
from rlcorr.gradients.report import GradientReport
from rlcorr.gradients.sketch import sampled_units
from rlcorr.gradients.sweep import GradientSweep
from rlcorr.presets import PRESETS, RANKED
from rlcorr.strips.packing import Package, PictureStrip

COUNT = 101
"""Number of values of a bound's slider. The gradient is measured at each of them."""


@dataclass(frozen=True)
class Shown:
    """The settings of the pictures, apart from the bounds: a step, the name of the preset, and B."""

    measured: Sketched
    preset: str
    batch_size: int

    @property
    def size_index(self) -> int:
        """Return the index of the batch size among those that are measured."""
        return sketches.BATCH_SIZES.index(self.batch_size)


def gradient(shown: Shown, config: CorrectionConfig) -> LiveContent:
    """Return the content of the Gradient view.

    Raises `UsageError` if the step's gradient cannot be distinguished from noise, or if the loss has none per token.
    """
    report = sketches.reported(shown.measured, config)
    if report.reference_length.value == 0:
        raise UsageError(say.NOISE_REFERENCE)
    reports = dict(zip(RANKED, sketches.all_presets(shown.measured).reports, strict=True))
    titles = {name: preset_title(name) for name in RANKED}
    plane = bias_noise.bias_noise_plane(reports, shown.batch_size, titles=titles, marked=shown.preset, shown=report)
    parts = _parts(sketches.decomposed(shown.measured, config))
    below = {
        "plane": Picture(plane, say.PLANE_TITLE, say.PLANE.format(size=shown.batch_size)),
        "parts": Picture(parts, say.PARTS_TITLE, say.DECOMPOSED),
    }
    bounds, curves, sweep = bounds_of(config), {}, None
    refused = "" if bounds else say.NO_BOUND
    try:
        if bounds:
            sweep = sketches.swept(shown.measured, config, bounds[0].id)
            curves = curves_over(shown, sweep, bounds[0])
    except UsageError as error:
        refused = str(error)
    if len(curves) == 1:  # two pictures side by side
        curves["plane"] = below.pop("plane")
    rows = [row for row in (curves, below, {"ranking": _ranked(shown, report)}) if row]
    return LiveContent(numbers(report, shown.size_index), rows, refused, texts={ANSWER: answer(shown, report, sweep)})


def answer(shown: Shown, report: GradientReport, sweep: GradientSweep | None) -> str:
    """Return sentences about the progress of a step and, if there is a sweep, about the best threshold.

    If the data do not show which threshold is best, this is the only sentence.
    """
    gains = say.gains(report.progress[shown.size_index], shown.batch_size)
    if sweep is None:
        return gains
    if not sweep.shows_best(shown.size_index):
        return _cannot_tell(shown.measured, sweep.ranking.choices[shown.size_index], "threshold")
    return gains + say.best_between(sweep.best[shown.size_index], of_ratio=sweep.of_ratio)


def over_nothing(shown: Shown, config: CorrectionConfig) -> Interval | None:
    """Return the progress of the best threshold minus that of no correction; None without a threshold to move."""
    try:
        bounds = bounds_of(config)
        sweep = sketches.swept(shown.measured, config, bounds[0].id) if bounds else None
    except UsageError:  # every ratio is 1
        return None
    return None if sweep is None else sweep.ranking.choices[shown.size_index].over_nothing


def _cannot_tell(measured: Sketched, choice: Choice, what: str) -> str:
    units = sampled_units(measured.batch, measured.sketch)
    return say.cannot_tell(what, choice.over_nothing, units, units_needed(units.count, choice.over_nothing))


def numbers(report: GradientReport, size_index: int) -> dict[str, Number]:
    """Return the headline numbers for the batch size with this index."""
    shown = (
        report.progress[size_index], report.relative_bias, report.noise[size_index],
        report.cosine, report.scale, report.ess,
    )  # fmt: skip
    return {
        label: Number(say.short(interval.value), help, say.ends(interval))
        for (label, help), interval in zip(say.NUMBERS.items(), shown, strict=True)
    }


def curves_over(shown: Shown, sweep: GradientSweep, b: Bound) -> dict[str, Picture]:
    """Return the curve over the threshold, and the best threshold over the batch size if any size shows one."""
    size, choice = shown.batch_size, sweep.ranking.choices[shown.size_index]
    caption = say.CURVE
    if sweep.shows_best(shown.size_index):
        caption += f" {say.CURVE_BEST} {lead_sentence(shown.measured, choice.over_nothing, say.NO_CORRECTION)}"
    pictures = {
        "gradient_curves": Picture(gradients.progress_curves(sweep, size, at=b.value), say.CURVE_TITLE, caption)
    }
    if any(sweep.shows_best(index) for index in range(len(sweep.best))):
        best = gradients.best_thresholds(sweep, batch_size=size)
        pictures["best_bounds"] = Picture(best, say.BEST_THRESHOLDS_TITLE, say.BEST_THRESHOLDS)
    return pictures


def _ranked(shown: Shown, report: GradientReport) -> Picture:
    """Return the ranking of all presets with the shown correction, and the sentence about the best above it."""
    ranking = sketches.all_presets(shown.measured)
    figure = gradients.ranking_bars(
        list(RANKED), ranking, shown.batch_size, titles=row_titles(), marked=shown.preset, shown=report
    )
    best = best_preset_sentence(shown.measured, ranking.choices[shown.size_index])
    return Picture(figure, say.RANKING, f"{say.RANKED} {say.MARKED}", above=best)


@cache
def row_titles() -> dict[str, str]:
    """Return title and system of each ranked preset, or title and name if a preset of its system has the same title."""
    labels = {name: BETWEEN.join((preset_title(name), PRESETS[name].system)) for name in RANKED}
    counts = Counter(labels.values())
    return {
        name: label if counts[label] == 1 else BETWEEN.join((preset_title(name), name))
        for name, label in labels.items()
    }


def best_preset_sentence(measured: Sketched, choice: Choice) -> str:
    """Return, in Markdown, which preset makes the most progress, and how far it is ahead; or that this is unknown."""
    names = [plain(title) for title in row_titles().values()]
    if not choice.over_nothing.tells:
        return say.with_size(choice.batch_size, _cannot_tell(measured, choice, "preset"))
    second = [index for group in choice.groups for index in group][1]
    return " ".join(
        (
            say.best_preset(choice, names),
            lead_sentence(measured, choice.over_next, say.NEXT_PRESET.format(name=names[second])),
            lead_sentence(measured, choice.over_nothing, say.NO_CORRECTION),
        )
    )


def lead_sentence(measured: Sketched, paired: Interval, other: str) -> str:
    """Return by how much the best is ahead of another, or how many more samples would show a difference."""
    units = sampled_units(measured.batch, measured.sketch)
    return say.lead(paired, other, units, units_needed(units.count, paired))


def _parts(bias: Decomposition) -> Figure:
    parts = (bias.level, bias.truncation, bias.rejection, bias.denominator)
    return gradients.parts_of_bias(dict(zip(say.PARTS, parts, strict=True)))


# --- at all values of a slider ---


def slider_values(shown: Shown, config: CorrectionConfig, b: Bound, value: float) -> tuple[float, ...]:
    """Return the values of the bound's slider, over the range in which the gradient changes if that is known."""
    try:
        low, high = sketches.moving_range(shown.measured, config, b.id)
        return slider_values_of(replace(b, low=max(low, b.low), high=min(high, b.high)), value, count=COUNT)
    except UsageError:  # every token has the same ratio
        return slider_values_of(b, value, count=COUNT)


def bound_strip(shown: Shown, config: CorrectionConfig, b: Bound, slider_values: tuple[float, ...]) -> Package:
    """Return what changes in `gradient`, for every value of the slider of this bound."""
    measurements = sketches.measured_at(shown.measured, config, b.id, slider_values)
    reports, size = [report for report, _ in measurements], shown.batch_size
    shapes = gradients.ranking_shapes(sketches.all_presets(shown.measured), size, reports)
    pictures = {
        "ranking": PictureStrip(shapes=shapes),
        "plane": PictureStrip(shapes=[bias_noise.bias_noise_cross(report, size) for report in reports]),
        "parts": PictureStrip(figures=[str(_parts(bias).to_json()) for _, bias in measurements]),
    }
    sweep = None
    if is_first(b, config):
        try:
            sweep = sketches.swept(shown.measured, config, b.id)
            pictures["gradient_curves"] = PictureStrip(shapes=gradients.progress_cursors(sweep, size, slider_values))
        except UsageError:  # every ratio is 1; the page says so instead of showing the curve
            pass
    texts = {ANSWER: [answer(shown, report, sweep) for report in reports]}
    return strips.package({}, [numbers(report, shown.size_index) for report in reports], texts, pictures)


def size_strip(shown: Shown, config: CorrectionConfig) -> Package:
    """Return what changes in `gradient`, for every number of answers in a batch."""
    return strips.package_contents([gradient(replace(shown, batch_size=size), config) for size in sketches.BATCH_SIZES])
