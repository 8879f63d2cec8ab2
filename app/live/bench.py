"""The correction bench: what a correction makes of one step, and the same at every place of a slider."""

from components.live_part import ANSWER, Moving, Note, Number, Picture
from controls.bounds import bounds_of, is_first
from data import corrections
from state.fields import Bound
from text import phrases
from text.formatting import number, percent, plain

from live import strips
from rlcorr import CorrectionConfig, CorrectionResult, TokenBatch
from rlcorr.adaptive import m2_at
from rlcorr.bounds import at_threshold, is_ratio, moved_rule
from rlcorr.errors import UsageError
from rlcorr.figures import correction, thresholds
from rlcorr.measuring.metrics import describe
from rlcorr.presets.parts import Preset
from rlcorr.strips.packing import Package, package_of
from rlcorr.strips.strip import strip

EXPLAINED = "explained"


def bench(of: corrections.Identity, batch: TokenBatch, config: CorrectionConfig, chosen: Preset) -> Moving:
    """Raises `UsageError` where the correction does."""
    result, report = corrections.corrected(batch, config)
    pictures = pictures_of(batch, result, config)
    try:
        curves, refused = _over_the_bound(of, batch, config), ""
    except UsageError as error:
        curves, refused = {}, str(error)
    return Moving(
        numbers=numbers_of(report) | _m2(batch, config, [config])[0],
        rows=[row for row in (pictures, curves) if row],
        refused=refused,
        texts={ANSWER: phrases.bench_answer(report), EXPLAINED: config.explain()},
        notes=[Note("**What it does:**", EXPLAINED), Note(when_it_hurts(chosen))],
    )


def when_it_hurts(chosen: Preset) -> str:
    """And who says so, as Markdown."""
    return f"**When it hurts:** {plain(chosen.hurts)}. Source: {plain(chosen.source)}."


def bench_strip(
    of: corrections.Identity, batch: TokenBatch, config: CorrectionConfig, b: Bound, places: tuple[float, ...]
) -> Package:
    """What moves in `bench`, at every place."""
    made = strip(batch, config, places, rule=b.rule, side=b.side)
    report = corrections.corrected(batch, config)[1]
    pictures = {"weights": strips.histogram("weights", made.weights), "mask": strips.PictureStrip(cells=True)}
    if made.statistic is not None and b.rule == 0:
        pictures["statistic"] = strips.histogram("statistic", made.statistic)
    if is_first(b, config):
        try:
            curves = corrections.curves(of, batch, config, b.rule, b.side)
            cursors = thresholds.cursors(curves.thresholds, places, of_ratio=is_ratio(config, b.rule))
            pictures |= dict.fromkeys(("shares_over", "mismatch_over"), strips.PictureStrip(shapes=cursors))
        except UsageError:  # no item is off: the page says so in place of the curves
            pass
    arrays = {name: array for name, array in package_of(made).arrays.items() if not name.startswith("numbers/")}
    moved = [at_threshold(config, place, b.rule, b.side) for place in places]
    reports = [report | at for at in strips.numbers_at(made)]
    numbers = [numbers_of(at) | m2 for at, m2 in zip(reports, _m2(batch, config, moved), strict=True)]
    texts = {ANSWER: [phrases.bench_answer(at) for at in reports], EXPLAINED: [at.explain() for at in moved]}
    return strips.package(arrays, numbers, texts, pictures)


def numbers_of(report: dict[str, float]) -> dict[str, Number]:
    """The headlines of every configuration."""
    shown = (
        ("Kept tokens", "kept_fraction", percent),
        ("Sequences touched", "rollout_rs_seq_masked_fraction", percent),
        ("ESS of the kept", "trained_eff_sample_size", percent),
        ("Mean weight", "trained_is_mean", number),
        ("Clipped mass", "rollout_is_oob_ratio", percent),
        ("k3", "k3_kl", number),
        ("Mean |Δ|", "abs_log_ratio", number),
    )
    return {label: Number(written(report.get(metric)), describe(metric)) for label, metric, written in shown}


def _m2(batch: TokenBatch, config: CorrectionConfig, moved: list[CorrectionConfig]) -> list[dict[str, Number]]:
    """Of a configuration that bounds k2, for each with another bound: the threshold of M2PO that comes to it."""
    rule = phrases.m2_rule(config)
    if rule is None:
        return [{} for _ in moved]
    return [
        {"M2 of the kept": Number(number(m2), phrases.M2)}
        for m2 in m2_at(batch, [at.rollout_rs[rule].upper for at in moved])
    ]


def pictures_of(batch: TokenBatch, result: CorrectionResult, config: CorrectionConfig) -> dict[str, Picture]:
    """The histogram of the weights and of the first rule's statistic, where the configuration has them; the mask."""
    pictures = {}
    if config.rollout_is is not None or not config.rollout_rs:
        figure = correction.weight_histogram(batch, result, config)
        pictures["weights"] = Picture(figure, "Importance weights", phrases.WEIGHTS)
    for rule in config.rollout_rs[:1]:
        figure = correction.statistic_histogram(batch, result, rule)
        pictures["statistic"] = Picture(figure, f"Rule `{rule.name}`", phrases.STATISTIC)
    figure = correction.fate_mask(correction.token_fates(batch, result, config))
    return pictures | {"mask": Picture(figure, "Tokens", phrases.MASK)}


def _over_the_bound(of: corrections.Identity, batch: TokenBatch, config: CorrectionConfig) -> dict[str, Picture]:
    """Every metric over the first bound. Raises `UsageError` where no item is off."""
    bounds = bounds_of(config)
    if not bounds:
        return {}
    at = bounds[0].value
    rule, side = bounds[0].rule, bounds[0].side
    curves = corrections.curves(of, batch, config, rule, side)
    of_ratio = is_ratio(config, rule)
    of_weights = moved_rule(config, rule) is None
    shares = thresholds.shares_over(curves.thresholds, curves.numbers, of_ratio=of_ratio, at=at)
    left = thresholds.mismatch_over(
        curves.thresholds, curves.metrics, of_weights=of_weights, of_ratio=of_ratio, at=at
    )  # fmt: skip
    return {
        "shares_over": Picture(shares, "What the bound costs", phrases.CURVES_OVER),
        "mismatch_over": Picture(
            left, "What the bound leaves", phrases.LEFT_OF_WEIGHTS if of_weights else phrases.LEFT_OF_RULE
        ),
    }
