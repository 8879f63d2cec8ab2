"""What a correction does to the gradient of one step, over the bound that moves and over the answers in a batch."""

from dataclasses import dataclass, replace

from components.live_part import ANSWER, Moving, Number, Picture
from controls.bounds import bounds_of, is_first, places_of
from data import sketches
from data.sketches import Sketched
from state.fields import Bound
from text import gradient as say

from live import strips
from live.strips import PictureStrip
from rlcorr import PRESETS, CorrectionConfig
from rlcorr.errors import UsageError
from rlcorr.figures import gradients
from rlcorr.figures.canvas import Figure
from rlcorr.gradients.decomposition import Decomposition
from rlcorr.gradients.report import GradientReport
from rlcorr.gradients.sketch import drawn
from rlcorr.gradients.sweep import GradientSweep
from rlcorr.strips.packing import Package

PLACES = 101
"""Of the bound's slider: the gradient is measured at each."""


@dataclass(frozen=True)
class Shown:
    """What the pictures are of, but for the bounds."""

    measured: Sketched
    preset: str
    batch_size: int

    @property
    def place(self) -> int:
        """Of the batch size among those that are measured."""
        return sketches.BATCH_SIZES.index(self.batch_size)


def gradient(shown: Shown, config: CorrectionConfig) -> Moving:
    """Raises `UsageError` where the step has no gradient to speak of, and for what has none per token."""
    report = sketches.reported(shown.measured, config)
    if report.reference_length.value == 0:
        raise UsageError(say.NOISE_REFERENCE)
    reports = dict(zip(PRESETS, sketches.all_presets(shown.measured).reports, strict=True))
    plane = gradients.bias_noise_plane(reports, shown.batch_size, marked=shown.preset, shown=report)
    parts = _parts(sketches.decomposed(shown.measured, config))
    below = {
        "plane": Picture(plane, "All presets between bias and noise", say.PLANE.format(size=shown.batch_size)),
        "parts": Picture(parts, "Where the bias comes from", say.DECOMPOSED),
    }
    bounds, curves, sweep = bounds_of(config), {}, None
    refused = "" if bounds else "This configuration has no bound to move."
    try:
        if bounds:
            sweep = sketches.swept(shown.measured, config, bounds[0].rule, bounds[0].side)
            curves = _curves(shown, sweep, bounds[0])
    except UsageError as error:
        refused = str(error)
    rows = [row for row in (curves, {"ranking": _ranked(shown, report)}, below) if row]
    return Moving(numbers(report, shown.place), rows, refused, texts={ANSWER: answer(shown, report, sweep)})


def answer(shown: Shown, report: GradientReport, sweep: GradientSweep | None) -> str:
    """How much progress it makes, and which bound would make most, if a sweep over one says so."""
    best, tried = (None, []) if sweep is None else (sweep.best[shown.place], sweep.thresholds)
    return say.answer(report.progress[shown.place], shown.batch_size, best, tried)


def numbers(report: GradientReport, place: int) -> dict[str, Number]:
    """The headlines, for the batch size at this place."""
    shown = (
        report.progress[place], report.relative_bias, report.noise[place], report.cosine, report.scale, report.ess
    )  # fmt: skip
    return {
        label: Number(say.short(interval.value), help, f"{say.short(interval.low)} to {say.short(interval.high)}")
        for (label, help), interval in zip(say.NUMBERS.items(), shown, strict=True)
    }


def _curves(shown: Shown, sweep: GradientSweep, b: Bound) -> dict[str, Picture]:
    size = shown.batch_size
    best, choice = sweep.best[shown.place], sweep.ranking.choices[shown.place]
    over = say.over(choice.over_nothing, "no correction", drawn(shown.measured.batch, shown.measured.sketch))
    curve = gradients.progress_curves(sweep, size, at=b.value)
    return {
        "gradient_curves": Picture(
            curve, "This step, over the bound", f"{say.RECORDED} {say.BEST.format(best=best.value, over=over)}"
        ),
        "best_bounds": Picture(
            gradients.best_thresholds(sweep, batch_size=size), "The best bound, over the batch", say.BEST_BOUNDS
        ),
    }


def _ranked(shown: Shown, report: GradientReport) -> Picture:
    """All presets, with what is shown over them, under the sentence about the best."""
    ranking = sketches.all_presets(shown.measured)
    figure = gradients.ranking_bars(list(PRESETS), ranking, shown.batch_size, marked=shown.preset, shown=report)
    here = drawn(shown.measured.batch, shown.measured.sketch)
    best = say.best_preset(ranking.choices[shown.place], list(PRESETS), here)
    return Picture(figure, say.RANKING, f"{say.RANKED} {say.MARKED}", above=best)


def _parts(bias: Decomposition) -> Figure:
    parts = (bias.level, bias.truncation, bias.rejection, bias.denominator)
    return gradients.parts_of_bias(dict(zip(say.PARTS, parts, strict=True)))


# --- at all places of a slider ---


def places(shown: Shown, config: CorrectionConfig, b: Bound, value: float) -> tuple[float, ...]:
    """Of the bound's slider: where the gradient changes at all, so far as that can be told."""
    try:
        low, high = sketches.moving_range(shown.measured, config, b.rule, b.side)
        return places_of(replace(b, low=max(low, b.low), high=min(high, b.high)), value, count=PLACES)
    except UsageError:  # no token is off, or all by the same
        return places_of(b, value, count=PLACES)


def bound_strip(shown: Shown, config: CorrectionConfig, b: Bound, places: tuple[float, ...]) -> Package:
    """What moves in `gradient` with this bound."""
    at_places = sketches.measured_at(shown.measured, config, b.rule, b.side, places)
    reports, size = [report for report, _ in at_places], shown.batch_size
    over_bars = gradients.ranking_shapes(sketches.all_presets(shown.measured), size, reports)
    pictures = {
        "ranking": PictureStrip(shapes=over_bars),
        "plane": PictureStrip(shapes=[gradients.cross(report, size) for report in reports]),
        "parts": PictureStrip(figures=[str(_parts(bias).to_json()) for _, bias in at_places]),
    }
    sweep = None
    if is_first(b, config):
        try:
            sweep = sketches.swept(shown.measured, config, b.rule, b.side)
            pictures["gradient_curves"] = PictureStrip(shapes=gradients.progress_cursors(sweep, size, places))
        except UsageError:  # no token is off: the page says so in place of the curve
            pass
    texts = {ANSWER: [answer(shown, report, sweep) for report in reports]}
    return strips.package({}, [numbers(report, shown.place) for report in reports], texts, pictures)


def size_strip(shown: Shown, config: CorrectionConfig) -> Package:
    """What moves in `gradient` with the answers in a batch."""
    return strips.of_all([gradient(replace(shown, batch_size=size), config) for size in sketches.BATCH_SIZES])
