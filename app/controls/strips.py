"""Live parts of the views, and their strips: what the library computes, the texts, and what each picture draws."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial

import numpy as np
import streamlit as st
from components.live_part import LiveContent, Number, live_part
from data import corrections
from data.bounds import useful_slider_values
from data.configuration import FIRST
from text.formatting import plain

from controls.configuration import StripOf, bound_sliders, resets
from rlcorr import CorrectionConfig, TokenBatch
from rlcorr.errors import UsageError
from rlcorr.strips.packing import Package, PictureStrip, strip_package
from rlcorr.strips.strip import Bars, Strip

Values = tuple[float, ...]
"""The values of a slider."""


def content_of(make: Callable[[CorrectionConfig], LiveContent], config: CorrectionConfig) -> tuple[LiveContent, str]:
    """Return the content for a configuration, or an empty one and the reason why there is none."""
    try:
        return make(config), ""
    except UsageError as error:
        return LiveContent({}, []), str(error)


def show_live(
    page: str,
    config: CorrectionConfig,
    make: Callable[[CorrectionConfig], LiveContent],
    strip: StripOf,
    identity: corrections.Identity,
    batch: TokenBatch,
    source: str,
) -> bool:
    """Show the live part of one configuration, or why there is none; return whether it is shown."""
    sliders = bound_sliders(config, (page, identity), strip, partial(useful_slider_values, identity, batch, config))
    content, refused = content_of(make, config)
    live_part(sliders, content, source=source, resets=resets(FIRST))
    if refused:
        st.error(plain(refused))
    return not refused


def reports(batch: TokenBatch, config: CorrectionConfig, strip: Strip) -> list[dict[str, float]]:
    """Return the metrics of the correction for each slider value of a strip."""
    report, columns = corrections.corrected(batch, config)[1], [values.tolist() for values in strip.numbers.values()]
    return [report | dict(zip(strip.numbers, row, strict=True)) for row in zip(*columns, strict=True)]


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
