"""Responses as text coloured token by token, each of which can be opened with the mouse or the keyboard."""

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

from streamlit.components.v2 import component

from rlcorr.figures.canvas import COOL, WARM, fade

SHADES = 20
"""Steps of colour on either side of ratio 1."""
STRONGEST = 0.7
"""Opacity of full colour: the text above it must stay legible."""
TOKENS_PER_PAGE, RESPONSES_PER_PAGE = 4000, 20

CSS = """
.legend { display: flex; flex-wrap: wrap; align-items: center; gap: 6px 18px; margin-bottom: 8px;
  font: 0.8rem var(--st-font); color: var(--st-text-color) }
.legend > span { display: inline-flex; align-items: center; gap: 6px }
.scale { position: relative; width: 205px; height: 30px }
.scale i { float: left; width: 5px; height: 14px }
.scale b { position: absolute; top: 15px; transform: translateX(-50%); font: 0.7rem var(--st-font) }
.scale b:first-of-type { transform: none }
.scale b:last-of-type { transform: translateX(-100%) }
.grid { position: relative; overflow: auto; max-height: min(64vh, 620px); padding: 2px 10px;
  color: var(--st-text-color); border: 1px solid var(--st-border-color); border-radius: 6px }
.response { padding: 6px 0 }
.response + .response { border-top: 1px solid var(--st-border-color-light, #8b8f9733) }
.heading { font: 0.75rem var(--st-font); opacity: 0.75 }
.line { font: 1rem/1.75 var(--st-code-font, monospace); overflow-wrap: anywhere }
.prompt { opacity: 0.6; margin-right: 6px }
.token { display: inline-block; min-width: 1ch; max-width: 100%; margin: 0 1px 1px 0; padding: 0 2px; line-height: 1.5;
  border-radius: 3px; text-align: center; unicode-bidi: isolate; cursor: pointer }
.token:hover { box-shadow: 0 0 0 1px var(--st-text-color) }
.token:focus-visible { outline: 2px solid var(--st-primary-color); outline-offset: 2px }
.open { box-shadow: 0 0 0 2px var(--st-text-color) }
.rejected { background-image: repeating-linear-gradient(135deg,
    color-mix(in srgb, var(--st-text-color) 30%, transparent) 0 1px, transparent 1px 4px) }
.bounded { text-decoration: underline 2px; text-underline-offset: 3px }
@media (max-width: 640px) {
  .grid { max-height: 46vh }
  .token { padding: 2px 5px }
}
"""

HTML = """<div class="legend"></div><div class="grid" role="grid"></div>"""

# Text enters the page through textContent and setAttribute only. Only responses that have changed are drawn anew, and
# focus and scrolling survive, because the function runs again with every threshold that somebody drags.
JS = """
const CLASSES = ["", "", "bounded", "bounded", "rejected"]
const make = (name, className, text) => {
  const node = document.createElement(name)
  node.className = className
  node.textContent = text
  return node
}

const drawLegend = (place, { words, palette, ticks }) => {
  const ratio = make("span", "", words.ratio), scale = make("span", "scale", "")
  for (const colour of palette) scale.append(make("i", "", "")), scale.lastChild.style.background = colour
  ticks.forEach((text, i) => {
    const tick = make("b", "", text)
    tick.style.left = `${100 * i / (ticks.length - 1)}%`
    scale.append(tick)
  })
  ratio.append(scale)
  const key = (className, text) => {
    const item = make("span", "", "")
    item.append(make("span", `token ${className}`, "7"), text)
    return item
  }
  place.replaceChildren(ratio, key("rejected", words.rejected), key("bounded", words.bounded))
}

const drawResponse = (response, { palette, fates }) => {
  const box = make("div", "response", ""), line = make("div", "line", "")
  const heading = make("div", "heading", response.heading), prompt = make("span", "prompt", response.prompt)
  box.setAttribute("role", "row")
  heading.setAttribute("role", "rowheader")
  line.append(prompt, ...response.texts.map((text, column) => {
    const fate = response.fates[column], cell = make("span", `token ${CLASSES[fate]}`, text)
    cell.place = { row: response.row, column }
    cell.tabIndex = -1
    cell.style.backgroundColor = palette[response.shades[column]]
    cell.setAttribute("role", "gridcell")
    const said = [`token ${column}`, `ratio ${response.ratios[column]}`, fates[fate]].filter((part) => part)
    cell.setAttribute("aria-label", `${text}, ${said.join(", ")}`)
    cell.title = said.join(", ")
    return cell
  }))
  box.append(heading, line)
  return box
}

// The nearest token one line further up or down, as the text is wrapped now.
const onNextLine = (cells, cell, step) => {
  const from = cell.getBoundingClientRect(), half = from.height / 2
  let best = cell, line, least = Infinity
  for (let i = cells.indexOf(cell) + step; i >= 0 && i < cells.length; i += step) {
    const at = cells[i].getBoundingClientRect()
    if (step * (at.top - from.top) < half) continue
    line ??= at.top
    if (Math.abs(at.top - line) > half) break
    const distance = Math.abs(at.left + at.right - from.left - from.right)
    if (distance < least) { best = cells[i]; least = distance }
  }
  return best
}

export default function ({ data, parentElement, setTriggerValue }) {
  const grid = parentElement.querySelector(".grid")
  const find = (place) => place && grid.cells.find((c) => c.place.row === place.row && c.place.column === place.column)
  const tabbable = (cell) => {
    if (grid.tabbable) grid.tabbable.tabIndex = -1
    if (cell) cell.tabIndex = 0
    grid.tabbable = cell
  }
  const mark = (cell) => {
    grid.open?.classList.remove("open")
    grid.open?.removeAttribute("aria-selected")
    cell?.classList.add("open")
    cell?.setAttribute("aria-selected", "true")
    grid.open = cell
  }
  const go = (cell) => { tabbable(cell); cell.focus() }
  const open = (cell) => { go(cell); mark(cell); setTriggerValue("open", cell.place) }

  const legend = JSON.stringify(data.legend), contents = data.responses.map((response) => JSON.stringify(response))
  if (grid.legend !== legend) {
    drawLegend(parentElement.querySelector(".legend"), data.legend)
    grid.setAttribute("aria-label", data.legend.words.grid)
    grid.legend = legend
  }
  const content = contents.join("\\n")
  if (grid.content !== content) {
    const focused = parentElement.activeElement?.place
    const old = grid.drawn ?? new Map()
    const boxes = data.responses.map((response, i) => old.get(contents[i]) ?? drawResponse(response, data.legend))
    grid.drawn = new Map(boxes.map((box, i) => [contents[i], box]))
    grid.replaceChildren(...boxes)
    grid.cells = [...grid.querySelectorAll(".token")]
    grid.content = content
    tabbable(find(focused) ?? find(data.opened) ?? grid.cells[0])
    if (focused) find(focused)?.focus({ preventScroll: true })
  }
  const opened = find(data.opened), name = JSON.stringify(data.opened)
  mark(opened)
  if (opened && grid.shown !== name) {  // scrolls this box only: the page stays where the person is
    const top = opened.getBoundingClientRect().top - grid.getBoundingClientRect().top
    if (top < 0 || top > grid.clientHeight - 30) grid.scrollTop += top - grid.clientHeight / 3
    tabbable(opened)
  }
  grid.shown = name

  grid.onclick = (event) => { if (event.target.place) open(event.target) }
  grid.onkeydown = (event) => {
    const cell = event.target, at = grid.cells.indexOf(cell)
    if (at < 0 || event.ctrlKey || event.altKey || event.metaKey) return
    const moves = {
      ArrowRight: () => go(grid.cells[at + 1] ?? cell),
      ArrowLeft: () => go(grid.cells[at - 1] ?? cell),
      ArrowDown: () => go(onNextLine(grid.cells, cell, 1)),
      ArrowUp: () => go(onNextLine(grid.cells, cell, -1)),
      Enter: () => open(cell),
      " ": () => open(cell),
    }
    if (!(event.key in moves)) return
    event.preventDefault()
    moves[event.key]()
  }
}
"""

_mount = component("rlcorr_token_text", html=HTML, css=CSS, js=JS)


@dataclass(frozen=True)
class ShownResponse:
    """One response as it is drawn; the lists have one entry per token."""

    row: int
    heading: str
    prompt: str
    texts: list[str]
    ratios: list[str]
    shades: list[int]
    """Index into the colours, `SHADES` at ratio 1."""
    fates: list[int]
    """Index into `plots.FATES`."""


def token_text(
    responses: Sequence[ShownResponse],
    opened: tuple[int, int] | None,
    *,
    span: float,
    words: dict[str, str],
    fates: Sequence[str],
    key: str,
    on_open: Callable[[], None],
) -> None:
    """Draw the responses. `span` is the |log r| of full colour; `words` has ratio, rejected, bounded and grid. When a
    token is opened, `on_open` is called, and st.session_state[key]["open"] is its row and column."""
    legend = {"words": words, "palette": palette(), "ticks": ticks(span), "fates": list(fates)}
    place = None if opened is None else {"row": opened[0], "column": opened[1]}
    data = {"responses": [asdict(r) for r in responses], "legend": legend, "opened": place}
    _mount(data=data, key=key, on_open_change=on_open)


def palette() -> list[str]:
    """From the coolest to the warmest, nothing at ratio 1."""
    strengths = [STRONGEST * abs(i) / SHADES for i in range(-SHADES, SHADES + 1)]
    return [fade(COOL if i < SHADES else WARM, round(a, 3)) for i, a in enumerate(strengths)]


def ticks(span: float) -> list[str]:
    """Ratios at full colour, half way, and 1. Half way is a quarter of the span: strength is the root of |log r|."""
    shares = (-1.0, -0.25, 0.0, 0.25, 1.0)
    return [f"{math.exp(share * span):.3g}" for share in shares]


def pages_of(rows: Sequence[int], lengths: Sequence[int]) -> list[list[int]]:
    """The rows in pages of at most twenty responses, and of fewer where these are long: one at least."""
    pages: list[list[int]] = []
    tokens = 0
    for row in rows:
        tokens += lengths[row]
        if not pages or len(pages[-1]) == RESPONSES_PER_PAGE or tokens > TOKENS_PER_PAGE:
            pages.append([])
            tokens = lengths[row]
        pages[-1].append(row)
    return pages
