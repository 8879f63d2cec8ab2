import { makePullable } from "./line_drag.js"
import { byKey, make, put, putHtml } from "./dom.js"
import { addButtons, enlarge, keepForSaving, unescaped } from "./export.js"
import { drawBars, drawCells, isWhole, sketch, textsOf } from "./fast_redraw.js"
import { fitRowNames } from "./row_names.js"

// Send the values of both axes at a click. Plotly's own event needs a point under the mouse, and loses it when the picture
// is redrawn.
const clicked = (box, event) => {
  const area = event.target.closest(".nsewdrag")
  if (!box.send || !area) return
  const { left, top } = area.getBoundingClientRect(), { xaxis, yaxis } = box._fullLayout
  box.send({ x: xaxis.p2d(event.clientX - left), y: yaxis.p2d(event.clientY - top) })
}

const USUAL = 320, LEAST = 210  // px: a usual picture is at most as high as the first, and is never lower than the second
const SHARE = 0.33, PROJECTED = 0.54  // of the window's height: a slider, its sentence and two pictures fit into a low window
const LARGE = 1.2  // times the usual type: a projector, which shows one row of pictures

// Return the height of a picture in this window. Pictures with names or squares on their axes keep theirs; a projector
// enlarges small squares.
const heightOf = ({ height, yaxis }, scale) => {
  if (height > USUAL || yaxis.type === "category" || (yaxis.scaleanchor && scale <= LARGE)) return height * scale
  if (scale > LARGE) return PROJECTED * innerHeight
  return Math.min(height * scale, Math.max(LEAST * scale, SHARE * innerHeight))
}

const BELOW_LEGEND = 8  // px between the legend and the axes

// Take the legend out of a figure, and return its entries. Plotly's own can cover the picture.
const takeLegend = ({ data, layout }) => {
  if (!layout.showlegend) return []
  layout.showlegend = false
  layout.height -= layout.margin.t - BELOW_LEGEND
  layout.margin.t = BELOW_LEGEND
  return data.filter(({ type, name, showlegend }) => type !== "heatmap" && name && showlegend !== false)
    .map(({ name, mode, line, marker, fillcolor }) => {
      const isLine = mode?.startsWith("lines") ?? false
      const colour = isLine ? line.color : marker?.color ?? fillcolor
      return { name: unescaped(name), isLine, dash: line?.dash, symbol: isLine ? "" : marker?.symbol ?? "", colour }
    })
}

const DASHES = { solid: "solid", dash: "dashed", dot: "dotted" }

const showLegend = (box, entries) => {
  box.legendText ??= box.parentElement.insertBefore(make("div", "rl-legend"), box)
  box.legend = entries
  box.legendText.replaceChildren(...entries.map(({ name, isLine, dash, symbol, colour }) => {
    const spot = make("i")
    if (isLine) spot.style.borderTop = `2px ${DASHES[dash ?? "solid"] ?? "dashed"} ${colour}`
    else Object.assign(spot.style, { background: colour, height: "0.65rem", width: "0.65rem" })
    if (symbol.startsWith("circle")) spot.style.borderRadius = "50%"
    if (symbol.startsWith("diamond")) spot.style.transform = "rotate(45deg) scale(0.8)"
    if (symbol.endsWith("-open")) Object.assign(spot.style, { background: "none", border: `2px solid ${colour}` })
    return make("span", "", spot, name)
  }))
}

// Show which run, step and file a picture shows, once below the last picture of them.
const showStamp = (box) => {
  box.stampText ??= box.parentElement.insertAdjacentElement("afterend", make("p", "rl-stamp"))
  put(box.stampText, box.stamp)
  const shown = new Set()
  for (const stamp of [...document.querySelectorAll(".rl-stamp")].reverse()) {
    stamp.hidden = shown.has(stamp.textContent)
    shown.add(stamp.textContent)
  }
}

const CHARACTER = 7, APART = 8  // px

// Leave out labels that do not fit side by side, from the middle outwards. Plotly would turn all of them, and the title of
// the axis would be over the next picture.
const thinTicks = ({ xaxis: { tickvals, ticktext, range, type }, margin }, width, scale) => {
  if (!ticktext || !range) return
  const placeOf = (value) => ((type === "log" ? Math.log10(value) : value) - range[0]) / (range[1] - range[0]) * (width - (margin.l + margin.r) * scale)
  const places = tickvals.map(placeOf), halves = ticktext.map((text) => text.length * CHARACTER * scale / 2), middle = ticktext.length >> 1
  for (const way of [-1, 1]) {
    let last = middle
    for (let i = middle + way; i >= 0 && i < ticktext.length; i += way) {
      if (Math.abs(places[i] - places[last]) < halves[i] + halves[last] + APART * scale) ticktext[i] = ""
      else last = i
    }
  }
}

// Return the figure as Plotly draws it on this page: scaled to the size of its type.
const prepared = (box, text) => {
  const figure = JSON.parse(text)
  const scale = parseFloat(getComputedStyle(document.documentElement).fontSize) / 16
  box.scale = scale
  box.entries = takeLegend(figure)
  box.fitted = fitRowNames(figure, box, scale)
  figure.layout.height = heightOf(figure.layout, scale)
  thinTicks(figure.layout, box.clientWidth, scale)
  if (scale !== 1) {
    enlarge(figure.layout, scale)
    for (const side of Object.keys(figure.layout.margin)) figure.layout.margin[side] *= scale
  }
  const style = getComputedStyle(box)
  figure.layout.font = { color: style.color, family: style.fontFamily, size: 12 * scale }
  for (const trace of figure.data) if (trace.texttemplate) trace.textfont = { color: style.color }  // cells are half transparent
  return figure
}

// Sketch a moving picture if that is possible; let Plotly draw a resting one.
const draw = (box, { data, layout }, resting) => {
  const { shapes, ...rest } = layout
  const now = { rest: JSON.stringify(rest), lines: JSON.stringify(shapes), traces: data.map(textsOf) }
  const before = box.shown
  const isAlike = before?.rest === now.rest && before.traces.length === data.length
  const moved = isAlike ? [...data.keys()].filter((i) => now.traces[i].whole !== before.traces[i].whole) : []
  const isFixed = (i) => now.traces[i].fixed === before.traces[i].fixed
  const isDone = isAlike && !(resting && (moved.length || box.sketched)) && sketch(box, data, moved, isFixed)
  if (!isDone) window.Plotly.react(box, data, layout, { displayModeBar: false, responsive: true })
  else if (now.lines !== before.lines) window.Plotly.relayout(box, { shapes })  // and their labels
  if (resting && box.clientWidth !== box._fullLayout.width) window.Plotly.Plots.resize(box)  // its row has more or fewer pictures now
  box.sketched = isDone && (box.sketched || moved.length > 0)
  box.shown = now
}

// Draw what the strip has for a slider position: heights of bars, codes of cells, lines.
const move = (box, { bars, cells, shapes }) => {
  for (const [name, heights] of bars) {
    drawBars(box, box.data.findIndex((trace) => trace.type === "bar" && trace.name === name), heights)
  }
  if (cells) {
    const mask = box.data.findIndex(({ type }) => type === "heatmap"), { codes, height, width } = cells
    const row = (_, i) => Array.from(codes.subarray(i * width, (i + 1) * width))
    if (isWhole(box)) drawCells(box, cells, box.data[mask].colorscale)
    else window.Plotly.restyle(box, { z: [Array.from({ length: height }, row)] }, [mask])
  }
  if (shapes) {
    const lines = structuredClone(shapes)
    if (box.scale !== 1) enlarge(lines, box.scale)
    window.Plotly.relayout(box, { shapes: lines })
  }
  box.sketched = true
}

// Return the figure for a slider position, for Plotly to draw.
export const rested = (text, { bars, cells, shapes, figure: whole }) => {
  if (whole) return whole
  const figure = JSON.parse(text)
  for (const [name, heights] of bars) {
    figure.data.find((trace) => trace.type === "bar" && trace.name === name).y = Array.from(heights)
  }
  if (cells) {
    const row = (_, i) => Array.from(cells.codes.subarray(i * cells.width, (i + 1) * cells.width))
    figure.data.find(({ type }) => type === "heatmap").z = Array.from({ length: cells.height }, row)
  }
  if (shapes) figure.layout.shapes = shapes
  return JSON.stringify(figure)
}

const newBox = (host) => {
  const box = Object.assign(make("div", "rl-picture"), { role: "img" }), frame = make("div", "rl-frame", box)
  box.addEventListener("click", (event) => clicked(box, event))
  makePullable(box)
  addButtons(frame, box)
  host.append(frame)
  host.redraw = (figure) => {  // while a bound is dragged
    keepForSaving(frame, { ...box.given, figure })
    if (box.shown) draw(box, prepared(box, figure), false)
  }
  host.rest = (moved) => showPicture(host, { ...box.given, figure: rested(box.given.figure, moved) }, box.send)
  host.pullable = (lines) => { box.pullable = lines }
  new ResizeObserver(() => {
    const width = box.clientWidth
    if (Number.isFinite(box.fitted) && width && width !== box.fitted) showPicture(host, box.given, box.send)
  }).observe(box)
  host.move = (moved) => { if (box.shown) move(box, moved) }
  return box
}

// Draw a figure in the host, which keeps its element. `send` gets the values of both axes at a click. Afterwards
// the host can `redraw` another figure and `move` parts of this one, until the next call.
export const showPicture = (host, given, send = null) => {
  const box = host.querySelector(".rl-picture") ?? newBox(host)
  box.setAttribute("aria-label", given.alt)
  Object.assign(box, { given, send, stamp: given.stamp })
  keepForSaving(box.parentElement, given)
  clearTimeout(box.waiting)
  const figure = prepared(box, given.figure)
  box.style.height = `${figure.layout.height}px`  // before Plotly is there, so that nothing moves when it draws
  showLegend(box, box.entries)
  showStamp(box)
  const start = () => {
    if (window.Plotly) draw(box, figure, true)
    else box.waiting = setTimeout(start, 30)
  }
  start()
}

export const purge = (host) => {
  const box = host.querySelector(".rl-picture")
  clearTimeout(box?.waiting)
  if (box && window.Plotly) window.Plotly.purge(box)
}

const makeShown = () => {
  const heading = make("h2"), host = make("div"), caption = make("p", "rl-caption")
  return Object.assign(make("section", "rl-shown", heading, host, caption), { heading, host, caption })
}

// Show pictures with their headings and captions, in the elements of `shownOf` by key. `place` puts these into the page, and
// `show` draws one.
export const showHeaded = (shownOf, pictures, place, show) => {
  const before = [...shownOf.values()], now = byKey(shownOf, pictures.map(({ key }) => key), makeShown)
  place(now)
  for (const shown of before) if (!shown.isConnected) purge(shown.host)
  for (const [i, picture] of pictures.entries()) {
    now[i].dataset.picture = picture.key
    putHtml(now[i].heading, picture.heading)
    putHtml(now[i].caption, picture.caption)
    show(now[i], picture)
  }
}
