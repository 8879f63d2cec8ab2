"""A picture of every figure, for places that show a notebook but run no plotly: a code host, most of all.

Its pixels depend on the browser and its fonts, which the figure does not. So a figure that shows the same as a stored
one is stored as it was, together with its picture, and a lesson that is built again elsewhere stays as it is.
"""

import base64
import io
import shutil
from copy import deepcopy
from typing import Any

from nbformat import NotebookNode
from PIL import Image
from playwright.sync_api import sync_playwright
from plotly.offline import get_plotlyjs
from plotted import difference, fingerprint

PLOTLY, PNG = "application/vnd.plotly.v1+json", "image/png"
WIDTH = 640
"""Pixels. A figure says itself how high it is."""

DRAW = """async ({ data, layout, width }) => {
  const drawn = { ...layout, width, paper_bgcolor: "white", plot_bgcolor: "white" }
  return await Plotly.toImage({ data, layout: drawn }, { format: "png", width, height: layout.height })
}"""


def add_images(notebook: NotebookNode, before: NotebookNode | None) -> None:
    """Put a PNG beside each figure: that of the stored notebook where the figure shows the same, else a new one.

    The output's metadata say from which figure the PNG was drawn, next to its alternative text.
    """
    stored = [output.data for output in _outputs(before) if PNG in output.data] if before else []
    new = []
    for output in _outputs(notebook):
        same = next((data for data in stored if difference(data[PLOTLY], output.data[PLOTLY]) is None), None)
        if same:
            output.data = deepcopy(same)
        else:
            new.append(output)
        output.metadata[PNG]["drawn_from"] = fingerprint(output.data[PLOTLY])
    for output, png in zip(new, _draw([output.data[PLOTLY] for output in new]), strict=True):
        output.data[PNG] = png


def _outputs(notebook: NotebookNode) -> list[NotebookNode]:
    """Every output that holds a figure."""
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    return [output for output in outputs if PLOTLY in output.get("data", {})]


def _draw(figures: list[Any]) -> list[str]:
    """A PNG in base64 of each figure."""
    if not figures:
        return []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        page = browser.new_page()
        page.add_script_tag(content=get_plotlyjs())
        drawn = []
        for figure in figures:
            address = page.evaluate(DRAW, {"data": figure["data"], "layout": figure["layout"], "width": WIDTH})
            drawn.append(_small(base64.b64decode(address.partition(",")[2])))
        browser.close()
    return drawn


def _small(png: bytes) -> str:
    """With 64 colours, in base64: a third of the size, and the eye sees no difference."""
    packed = io.BytesIO()
    # The default method drops the colour of a single marked point.
    few = Image.open(io.BytesIO(png)).convert("RGB").quantize(64, Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE)
    few.save(packed, "png", optimize=True)
    return base64.b64encode(packed.getvalue()).decode() + "\n"
