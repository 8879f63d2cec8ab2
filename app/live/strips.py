"""Strips as a page gets them: beside what the library computes, the page's own texts, and which picture draws what."""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from components.live_part import Moving, Number
from data import corrections
from state.fields import Bound

from rlcorr import CorrectionConfig
from rlcorr.strips.bars import Bars
from rlcorr.strips.packing import Package
from rlcorr.strips.strip import Strip


@dataclass(frozen=True)
class PictureStrip:
    """What moves in a picture."""

    bars: Mapping[str, str] = field(default_factory=dict)
    """Trace → the array with its heights."""
    cells: bool = False
    """Whether it shows the cells of the mask."""
    shapes: Sequence[Sequence[Mapping[str, Any]]] | None = None
    """Its lines at each place."""
    figures: Sequence[str] | None = None
    """All of it at each place, as JSON: for what is small, or where everything moves."""


def known_by(of: Hashable, config: CorrectionConfig, b: Bound, places: Sequence[float]) -> str:
    """Strips with the same text are the same, wherever the moving bound is now."""
    return repr((of, corrections.all_but(config, b.rule, b.side), b.side, places))


def numbers_at(strip: Strip) -> list[dict[str, float]]:
    """Its numbers at each place, by metric."""
    columns = {name: values.tolist() for name, values in strip.numbers.items()}
    return [{name: values[place] for name, values in columns.items()} for place in range(len(strip.places))]


def histogram(name: str, bars: Bars) -> PictureStrip:
    """The picture that draws this histogram of the strip."""
    return PictureStrip(bars={trace: f"{name}/counts/{trace}" for trace in bars.counts}, shapes=bars.marks)


def of_all(moving: Sequence[Moving]) -> Package:
    """Of what is shown at each place: its numbers, texts and tables, and whole pictures where they differ."""
    drawn = {key: [str(at.pictures[key].figure.to_json()) for at in moving] for key in moving[0].pictures}
    pictures = {key: PictureStrip(figures=figures) for key, figures in drawn.items() if len({*figures}) > 1}
    texts = {name: [at.texts[name] for at in moving] for name in moving[0].texts}
    tables = {name: [at.tables[name] for at in moving] for name in moving[0].tables}
    return package({}, [at.numbers for at in moving], texts, pictures, tables)


def package(
    arrays: Mapping[str, np.ndarray],
    numbers: Sequence[Mapping[str, Number]],
    texts: Mapping[str, Sequence[str]],
    pictures: Mapping[str, PictureStrip],
    tables: Mapping[str, Sequence[str]] | None = None,
) -> Package:
    """As `strip_lookup.js` takes it: headlines, texts and tables by their name, one for each place; pictures by their
    key. Of the arrays only those that a picture draws."""
    labels, shapes = numbers[0], []
    for moves in pictures.values():
        if moves.shapes is not None and moves.shapes not in shapes:
            shapes.append(moves.shapes)
    about = {
        "numbers": {label: [at[label].text for at in numbers] for label in labels},
        "beside": {label: [at[label].beside for at in numbers] for label, number in labels.items() if number.beside},
        "texts": dict(texts),
        "tables": dict(tables or {}),
        "shapes": [[[_rounded(line) for line in lines] for lines in of_places] for of_places in shapes],
        "pictures": {
            key: vars(moves) | {"shapes": None if moves.shapes is None else shapes.index(moves.shapes)}
            for key, moves in pictures.items()
        },
    }
    return Package(arrays, about)


def _rounded(line: Mapping[str, Any]) -> dict[str, Any]:
    """With as many digits as a pixel has, which is most of what a strip weighs."""
    return {**line, **{end: float(f"{line[end]:.6g}") for end in ("x0", "x1") if end in line}}
