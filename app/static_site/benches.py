"""What the page shows of a run and a preset: the same live parts as the app, each with its strip, as one package."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from components.live_part import ANSWER, Moving, Note, Number, Picture, Slider, sent
from components.markdown import inline
from controls import batch_size
from controls.bounds import bounds_of, places_of
from data import corrections, recorded, sketches, studies
from live import bench as benched
from live import gradient as measured
from live import strips
from live.strips import PictureStrip
from state.fields import Bound
from text import gradient as gradient_text
from text import mismatch as mismatch_text
from text import published, training
from text.formatting import number, table

from rlcorr import PRESETS, CorrectionConfig
from rlcorr.analysis.regions import SEQUENCE_METHODS, TOKEN_METHODS
from rlcorr.analysis.triage import triage
from rlcorr.bounds import at_threshold
from rlcorr.figures import gradients, mismatch
from rlcorr.figures.study import differences
from rlcorr.gradients.sketch import drawn
from rlcorr.records.study import SeedRange
from rlcorr.strips.packing import Package
from rlcorr.systems.export import SYSTEMS, exports
from static_site.light import light

PLACES = 121
"""Of a slider of the bench: a thumb on a line of a thousand pixels moves by eight from one to the next."""
RESETS = {"": published.RESET}
BEST = "best"
DRAWN = ("TIS", "IcePop", "KPop", "DPPO")


def with_a_bound() -> dict[str, Bound]:
    """Preset → its first bound, of those that have one."""
    return {name: bounds_of(entry.config)[0] for name, entry in PRESETS.items() if bounds_of(entry.config)}


def alike(presets: Iterable[str]) -> dict[str, str]:
    """Preset → the first of these with the same configuration, whose files it shares."""
    first: dict[CorrectionConfig, str] = {}
    return {name: first.setdefault(PRESETS[name].config, name) for name in presets}


def hurts(preset: str) -> str:
    """As the bench says it, as HTML."""
    return inline(benched.when_it_hurts(PRESETS[preset]))


def places(b: Bound) -> tuple[float, ...]:
    return places_of(b, b.value, count=PLACES)


def bench_package(run: Path, step: int, preset: str) -> Package:
    """The bench of this step, and its strip. Raises `UsageError` where the correction does."""
    batch, config, b = recorded.step(run, step).batch, PRESETS[preset].config, with_a_bound()[preset]
    of, moved = corrections.identity(run, step), places(b)
    shown = benched.bench(of, batch, config, PRESETS[preset])
    made = benched.bench_strip(of, batch, config, b, moved)
    return _with_part(made, shown, _of_bound(b, moved), recorded.source(run, step))


def gradient_package(run: Path, step: int, preset: str) -> Package:
    """The curve over the bound, for one size of the batch; its slider stands at the thresholds that were measured."""
    config, b = PRESETS[preset].config, with_a_bound()[preset]
    of = measured.Shown(sketches.sketched(run, step), preset, batch_size.USUAL)
    shown = measured.gradient(of, config)
    swept = sketches.swept(of.measured, config, b.rule, b.side)
    reports = dict(zip(swept.thresholds, swept.ranking.reports, strict=True))
    reports[b.value] = sketches.reported(of.measured, config)
    moved = sorted((place for place in reports if b.low <= place <= b.high), reverse=b.side == "lower")
    pictures = {"gradient_curves": PictureStrip(shapes=gradients.progress_cursors(swept, batch_size.USUAL, moved))}
    numbers = [measured.numbers(reports[place], of.place) for place in moved]
    shown = replace(shown, rows=shown.rows[:1])
    texts = {ANSWER: [measured.answer(of, reports[place], swept) for place in moved]}
    made = strips.package({}, numbers, texts, pictures)
    return _with_part(made, shown, _of_bound(b, moved), recorded.source(run, step))


def ranking_package(run: Path, step: int) -> Package:
    """All presets by their progress, over the answers in a batch."""
    of = sketches.sketched(run, step)
    ranking, names, here = sketches.all_presets(of), list(PRESETS), drawn(of.batch, of.sketch)
    at_sizes = [
        Moving(
            {},
            [
                {
                    "ranking": Picture(
                        gradients.ranking_bars(names, ranking, size), gradient_text.RANKING, gradient_text.RANKED
                    )
                }
            ],
            tables={BEST: inline(gradient_text.best_preset(choice, names, here))},
        )
        for size, choice in zip(sketches.BATCH_SIZES, ranking.choices, strict=True)
    ]
    slider = Slider(
        batch_size.KEY, gradient_text.BATCH_SIZE, sketches.BATCH_SIZES, batch_size.USUAL, generation=0, address=None,
        strip=None, text=BEST, help=gradient_text.BATCH_SIZE_IS,
    )  # fmt: skip
    shown = at_sizes[sketches.BATCH_SIZES.index(batch_size.USUAL)]
    made = _with_part(strips.of_all(at_sizes), shown, slider, recorded.source(run, step), resets={})
    (moves,) = made.about["pictures"].values()
    moves["figures"] = [json.dumps(light(json.loads(figure))) for figure in moves["figures"]]
    return made


def _of_bound(b: Bound, moved: Sequence[float]) -> Slider:
    return Slider("bound", b.label, moved, b.value, generation=0, address=None, strip=None, help=b.help)


def _with_part(
    strip: Package, shown: Moving, slider: Slider, source: str, resets: Mapping[str, str] = RESETS
) -> Package:
    arrays = {name: array for name, array in strip.arrays.items() if name != "places"}  # the slider has them
    about = {**strip.about, "shapes": light(strip.about["shapes"]), "part": _sent([slider], shown, source, resets)}
    return Package(arrays, about)


def _sent(sliders: Sequence[Slider], shown: Moving, source: str, resets: Mapping[str, str]) -> dict[str, Any]:
    """As the app sends it, but that figures are lighter, and objects: their parts can be shared with other files."""
    part = sent(sliders, shown, source, resets)
    rows = [[picture | {"figure": light(json.loads(picture["figure"]))} for picture in row] for row in part["rows"]]
    return part | {"rows": rows}


def mismatch_package(run: Path, step: int) -> Package:
    """The mismatch view: what the batch looks like, as sentences, and where its log-probs disagree. Raises
    `UsageError` where nothing can be said of it."""
    batch = recorded.step(run, step).batch
    findings, methods = triage(batch), {name: TOKEN_METHODS[name] for name in DRAWN}
    numbers = {
        label: Number(number(findings[0].numbers[name]), help)
        for label, (name, help) in mismatch_text.SIZES.items()
        if name in findings[0].numbers
    }
    below = {
        "tail": mismatch.tail(batch),
        "position": mismatch.by_position(batch),
        "length": mismatch.by_length(batch, SEQUENCE_METHODS),
    }
    rows = [
        {
            "acceptance": Picture(
                mismatch.acceptance(batch, methods), mismatch_text.ACCEPTANCE_TITLE, mismatch_text.ACCEPTANCE
            ),
            "magnified": Picture(
                mismatch.acceptance(batch, methods, magnified=True),
                mismatch_text.MAGNIFIED_TITLE,
                mismatch_text.MAGNIFIED,
            ),
        },
        {key: Picture(figure, *mismatch_text.PICTURES[key]) for key, figure in below.items()},
    ]
    part = _sent([], Moving(numbers, rows), recorded.source(run, step), {})
    return Package({}, {"part": part, "sentences": [finding.sentence for finding in findings]})


def study_package(name: str) -> Package:
    """What became of every correction of a study. Raises `UsageError` where it has not been trained."""
    result, study = studies.table(name), studies.all_studies()[name]
    pairs = {"nothing": result.against_nothing, "chance": result.against_chance}
    pictures = {}
    for against, compared in pairs.items():
        title, caption = training.AGAINST[against]
        if compared:
            pictures[against] = Picture(differences(compared), title, caption.format(count=len(compared)))
    rows = [
        [o.preset, _seeds(o.reward), _seeds(o.best_reward), f"{o.k3.mean:.1g}", _seeds(o.kept_fraction)]
        for o in result.outcomes
    ]
    told = Moving(
        numbers={}, rows=[pictures] if pictures else [], notes=[Note(training.OUTCOMES, "outcomes")],
        tables={"outcomes": table(training.OUTCOME_COLUMNS, rows)},
    )  # fmt: skip
    return Package({}, {"part": _sent([], told, result.source, {}), "sentences": [study.story, study.look]})


def _seeds(seeds: SeedRange) -> str:
    return f"{seeds.mean:.2f} [{seeds.lowest:.2f},\u00a0{seeds.highest:.2f}]"


def exported(preset: str) -> Package:
    """“Use it”: for each system the lines of its text; one that differs from place to place is a list of all."""
    entry, b = PRESETS[preset], with_a_bound()[preset]
    texts = [exports(at_threshold(entry.config, place, b.rule, b.side), entry.loss) for place in places(b)]
    systems = {}
    for title in SYSTEMS:
        at_places = [of_place[title].split("\n") for of_place in texts]
        most = max(map(len, at_places))
        lines = list(zip(*([*lines, *[""] * (most - len(lines))] for lines in at_places), strict=True))
        systems[title] = [line[0] if len({*line}) == 1 else line for line in lines]
    return Package({}, {"systems": systems})
