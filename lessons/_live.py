"""Live pictures between paragraphs of the lessons' pages: the bench of the static site, as _site/live.toml lists it.

Its script and its strips are files of the site next to the pages. Where they cannot be read, the page shows a still
picture and says why it does not move.
"""

import json
import tomllib
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlencode

from nbformat import NotebookNode

from rlcorr import PRESETS, correct
from rlcorr.figures.canvas import Figure
from rlcorr.figures.histograms import statistic_histogram, weight_histogram
from rlcorr.records import runs

TABLE = Path(__file__).resolve().parent / "_site" / "live.toml"
NUMBER = '<span class="pull">{value:.6g}</span>'
PART = """{text}

<div class="live" data-run="{run}" data-preset="{preset}" data-bound="{bound}" data-value="{value}"
data-pictures="{picture} mask" data-numbers="{numbers}">
<div class="live-part"></div>
<p class="live-refused" role="status" hidden></p>
<div class="still" style="--height: {height}px"><script type="application/json">{figure}</script></div>
<p class="take"><a class="go" href="../index.html?{query}">Open this step on the bench</a></p>
</div>

"""


@dataclass(frozen=True)
class LivePart:
    """A live picture of one lesson. The fields are described in live.toml."""

    before: str
    run: str
    preset: str
    bound: str
    value: float
    picture: str
    numbers: list[str]
    text: str


def live_parts() -> dict[str, LivePart]:
    """Return slug of a lesson → its live picture."""
    return {slug: LivePart(**row) for slug, row in tomllib.loads(TABLE.read_text(encoding="utf-8")).items()}


def insert(notebook: NotebookNode, part: LivePart) -> None:
    """Put the picture before its heading. Raises `ValueError` if the lesson does not have this heading once."""
    starts = [
        cell for cell in notebook.cells if cell.cell_type == "markdown" and part.before in cell.source.split("\n")
    ]
    if len(starts) != 1:
        raise ValueError(f"live.toml: {len(starts)} cells have the heading {part.before!r}; one is needed.")
    lines = starts[0].source.split("\n")
    at = lines.index(part.before)
    starts[0].source = "\n".join([*lines[:at], markdown(part), *lines[at:]])


def markdown(part: LivePart) -> str:
    """Return the paragraph with its number, the place of the picture, and a link to the bench."""
    figure = json.loads(str(still(part).to_json()))
    query = {"view": "bench", "run": part.run, "preset": part.preset, part.bound: part.value}
    return PART.format(
        text=part.text.replace("{bound}", NUMBER.format(value=part.value)),
        run=part.run,
        preset=part.preset,
        bound=part.bound,
        value=part.value,
        picture=part.picture,
        numbers=", ".join(part.numbers),
        height=figure["layout"]["height"],
        figure=json.dumps(figure, separators=(",", ":")).replace("<", "\\u003c"),
        query=urlencode(query).replace("&", "&amp;"),
    )


def still(part: LivePart) -> Figure:
    """Return the picture at the preset's own number."""
    run, config = runs.find_run(part.run), PRESETS[part.preset].config
    batch = runs.read_step(run, runs.list_steps(run)[-1]).batch
    result = correct(batch, config)
    if part.picture == "weights":
        return weight_histogram(batch, result, config)
    return statistic_histogram(batch, result, config.rollout_rs[0])
