"""Strips for the pages: what the library computes, the texts of the page, and what each picture draws."""

from collections.abc import Hashable, Mapping, Sequence

import numpy as np
from components.live_part import LiveContent, Number
from data import corrections
from data.bounds import Bound

from rlcorr import CorrectionConfig
from rlcorr.strips.bars import Bars
from rlcorr.strips.packing import Package, PictureStrip, strip_package
from rlcorr.strips.strip import Strip


def strip_key(identity: Hashable, config: CorrectionConfig, b: Bound, slider_values: Sequence[float]) -> str:
    """Return a key of the strip of this bound. It does not depend on the bound's present value."""
    return repr((identity, corrections.key_without_bound(config, b.id), slider_values))


def numbers_of(strip: Strip) -> list[dict[str, float]]:
    """Return metric → number for each slider value of a strip."""
    columns = {name: values.tolist() for name, values in strip.numbers.items()}
    return [{name: values[index] for name, values in columns.items()} for index in range(len(strip.slider_values))]


def histogram(name: str, bars: Bars) -> PictureStrip:
    """Return what a slider changes in the picture that draws this histogram of the strip."""
    return PictureStrip(bars={trace: f"{name}/counts/{trace}" for trace in bars.counts}, shapes=bars.marks)


def package_contents(contents: Sequence[LiveContent]) -> Package:
    """Pack the contents for all slider values: numbers, texts, tables, and whole pictures if they differ."""
    first = contents[0]
    figures = {key: [str(one.pictures[key].figure.to_json()) for one in contents] for key in first.pictures}
    pictures = {key: PictureStrip(figures=texts) for key, texts in figures.items() if len({*texts}) > 1}
    texts = {name: [one.texts[name] for one in contents] for name in first.texts}
    tables = {name: [one.tables[name] for one in contents] for name in first.tables}
    return package({}, [one.numbers for one in contents], texts, pictures, tables)


def package(
    arrays: Mapping[str, np.ndarray],
    numbers: Sequence[Mapping[str, Number]],
    texts: Mapping[str, Sequence[str]],
    pictures: Mapping[str, PictureStrip],
    tables: Mapping[str, Sequence[str]] | None = None,
) -> Package:
    """Pack a strip of a page as `strip_package` does; `numbers` has the headlines of each slider value."""
    shown = [{label: (number.text, number.beside) for label, number in one.items()} for one in numbers]
    return strip_package(arrays, shown, texts, pictures, tables or {})
