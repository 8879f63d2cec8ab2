"""What a correction does to the gradient of one step, over the bound that moves and over the answers in a batch."""

from dataclasses import dataclass

from browser.live_part import Moving, Number, Picture
from controls.bounds import bounds_of
from data import sketches
from data.sketches import Sketched
from remembered.fields import Bound
from words import gradient as say

from rlcorr import PRESETS, CorrectionConfig
from rlcorr.errors import UsageError
from rlcorr.figures import gradients
from rlcorr.figures.canvas import Figure
from rlcorr.gradients.report import GradientReport
from rlcorr.gradients.sketch import drawn


@dataclass(frozen=True)
class Shown:
    """What the pictures are of, but for the bound that is dragged."""

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
    below = {
        "plane": Picture(
            _plane(shown, config, report), "All presets between bias and noise", say.PLANE.format(size=shown.batch_size)
        ),
        "parts": Picture(_decomposition(shown.measured, config), "Where the bias comes from", say.DECOMPOSED),
    }
    bounds, curves = bounds_of(config), {}
    refused = "" if bounds else "This configuration has no bound to move."
    try:
        if bounds:
            curves = _curves(shown, config, bounds[0])
    except UsageError as error:
        refused = str(error)
    ranked = {"ranking": _ranked(shown, config, report)}
    return Moving(numbers(report, shown.place), [row for row in (curves, ranked, below) if row], refused)


def numbers(report: GradientReport, place: int) -> dict[str, Number]:
    """The headlines, for the batch size at this place."""
    shown = (
        report.progress[place], report.relative_bias, report.noise[place], report.cosine, report.scale, report.ess
    )  # fmt: skip
    return {
        label: Number(say.short(interval.value), help, f"{say.short(interval.low)} to {say.short(interval.high)}")
        for (label, help), interval in zip(say.NUMBERS.items(), shown, strict=True)
    }


def _curves(shown: Shown, config: CorrectionConfig, b: Bound) -> dict[str, Picture]:
    """Raises `UsageError` where no token is off."""
    sweep, size = sketches.swept(shown.measured, config, b.rule, b.side), shown.batch_size
    best, choice = sweep.best[shown.place], sweep.ranking.choices[shown.place]
    over = say.over(choice.over_nothing, "no correction", drawn(shown.measured.batch, shown.measured.sketch))
    ends = {name: f"{end:.4g}" for name, end in (("best", best.value), ("low", best.low), ("high", best.high))}
    most = say.MOST.format(size=size, over=over, **ends)
    return {
        "gradient_curves": Picture(
            gradients.progress_curves(sweep, size, at=b.value), "This step, over the bound", f"{say.RECORDED} {most}"
        ),
        "best_bounds": Picture(
            gradients.best_thresholds(sweep, batch_size=size), "The best bound, over the batch", say.BEST_BOUNDS
        ),
    }


def _ranked(shown: Shown, config: CorrectionConfig, report: GradientReport) -> Picture:
    """All presets, with what is shown among them, under the sentence about the best."""
    ranking, marked = sketches.all_presets(shown.measured), _marked(shown, config)
    changed = None if marked == shown.preset else report
    figure = gradients.ranking_bars(list(PRESETS), ranking, shown.batch_size, marked=marked, changed=changed)
    here = drawn(shown.measured.batch, shown.measured.sketch)
    best = say.best_preset(ranking.choices[shown.place], list(PRESETS), here)
    return Picture(figure, "All presets by their progress", say.RANKED, above=best)


def _plane(shown: Shown, config: CorrectionConfig, report: GradientReport) -> Figure:
    reports = dict(zip(PRESETS, sketches.all_presets(shown.measured).reports, strict=True))
    marked = _marked(shown, config)
    return gradients.bias_noise_plane({**reports, marked: report}, shown.batch_size, marked=marked)


def _marked(shown: Shown, config: CorrectionConfig) -> str:
    """What the configuration that is shown is called."""
    return shown.preset if config == PRESETS[shown.preset].config else f"{shown.preset}, changed"


def _decomposition(measured: Sketched, config: CorrectionConfig) -> Figure:
    bias = sketches.decomposed(measured, config)
    parts = (bias.level, bias.truncation, bias.rejection, bias.denominator)
    return gradients.parts_of_bias(dict(zip(say.PARTS, parts, strict=True)))
