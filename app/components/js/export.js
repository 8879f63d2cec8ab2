// Save a picture as PNG or SVG and its data as CSV, and write into it which run, step and file it shows.

import { make } from "./dom.js"
import { unpacked } from "./fast_redraw.js"

// `read` of an axis converts its values as the tick labels do: log-ratios, for example, become ratios in the CSV.
const NEAR_ONE = 2e-4  // as in rlcorr/figures/axes.py
const READ = {
  exp: Math.exp, "exp of −": (v) => Math.exp(-v), "10^": (v) => 10 ** v,
  "exp of sinh": (v) => Math.exp(NEAR_ONE * Math.sinh(v)), "−": (v) => -v, "": (v) => v,
}
const STAMP = 20, LINE = 14, LEGEND = 34, EDGE = 12  // px

const escaped = (text) => text.replace(/[&<>]/g, (c) => ({ "&": "&amp;", "<": "&lt;", ">": "&gt;" }[c]))

// Scale everything in a figure that is measured in pixels with the size of the page's type.
export const enlarge = (node, scale) => {
  for (const [key, value] of Object.entries(node)) {
    if (key.endsWith("font") && value.size) value.size *= scale
    else if (value && typeof value === "object") enlarge(value, scale)
  }
}

const addStamp = (layout, stamp, scale) => {
  if (!stamp) return
  const lines = stamp.split("\n"), room = (STAMP + LINE * (lines.length - 1)) * scale
  layout.margin.b += room
  layout.height += room
  const at = { xref: "paper", yref: "paper", x: 1, y: 0, xanchor: "right", yanchor: "bottom", yshift: -layout.margin.b }
  const text = lines.map(escaped).join("<br>")
  const xshift = layout.margin.r - EDGE * scale  // names to the right of the axes leave too little room on a phone
  const look = { text, xshift, align: "right", showarrow: false, font: { size: 12 * scale }, opacity: 0.85 }
  layout.annotations = [...(layout.annotations ?? []), { ...at, ...look }]
}

const isThere = (value) => value !== undefined && value !== null && !Number.isNaN(value)

const cellsOf = (trace) => {
  const z = unpacked(trace.z), counts = unpacked(trace.customdata)
  const x = unpacked(trace.x) ?? z[0].map((_, j) => (trace.x0 ?? 0) + j * (trace.dx ?? 1))
  const y = unpacked(trace.y) ?? z.map((_, i) => (trace.y0 ?? 0) + i * (trace.dy ?? 1))
  return z.flatMap((row, i) => row.map((value, j) => ({ x: x[j], y: y[i], z: value, detail: counts?.[i][j] })))
    .filter((cell) => isThere(cell.z))
}

const pointsOf = (trace) => {
  const [x, y, text, detail] = [trace.x, trace.y, trace.text, trace.customdata].map(unpacked)
  const ends = {}
  for (const axis of ["x", "y"]) {
    const bars = trace[`error_${axis}`]
    if (!bars) continue
    ends[`${axis} above`] = unpacked(bars.array)
    ends[`${axis} below`] = unpacked(bars.arrayminus)
  }
  const points = Array.from({ length: Math.max(x?.length ?? 0, y?.length ?? 0) }, (_, i) => {
    const point = { x: x ? x[i] : i, y: y ? y[i] : i, text: Array.isArray(text) ? text[i] : text }
    for (const [name, values] of Object.entries(ends)) point[name] = values?.[i]
    for (const [j, value] of [detail?.[i]].flat().entries()) point[j ? `detail ${j + 1}` : "detail"] = value
    return point
  })
  return points.filter((point) => isThere(point.x) && isThere(point.y))
}

// Plotly reads names as HTML.
export const unescaped = (name) => name.replace(/&(lt|gt|quot|#x27|amp);/g, (entity) => ENTITIES[entity])

const ENTITIES = { "&lt;": "<", "&gt;": ">", "&quot;": '"', "&#x27;": "'", "&amp;": "&" }

// A spreadsheet would read a text that begins with = as a formula.
const quoted = (value) => {
  if (typeof value === "number") return Number.isNaN(value) ? "" : String(value)
  const plain = isThere(value) ? unescaped(String(value)) : ""
  const text = /^[=+@\t-]/.test(plain) ? `'${plain}` : plain
  return /[",\n\r]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text
}

// One row per point or cell, under the titles of the axes.
const csvOf = (figure) => {
  const read = figure.layout.meta?.read ?? {}
  const rows = figure.data.flatMap((trace) => {
    const points = trace.type === "heatmap" ? cellsOf(trace) : pointsOf(trace)
    return points.map((row) => ({
      trace: trace.name, ...row,
      x: typeof row.x === "number" ? READ[read.x ?? ""](row.x) : row.x,
      y: typeof row.y === "number" ? READ[read.y ?? ""](row.y) : row.y,
    }))
  })
  const names = [...new Set(rows.flatMap((row) => Object.keys(row).filter((name) => row[name] !== undefined)))]
  const title = (name) => {
    const told = figure.data.map((trace) => trace.meta?.[name]).find((text) => text)
    const shown = told ?? figure.layout[`${name}axis`]?.title?.text
    return shown ? `${name}: ${shown}` : name
  }
  return [names.map(title), ...rows.map((row) => names.map((name) => row[name]))]
    .map((row) => `${row.map(quoted).join(",")}\n`).join("")
}

// Return the background colour of an element.
export const ground = (element) => {
  const { backgroundColor } = getComputedStyle(element)
  return backgroundColor === "rgba(0, 0, 0, 0)" && element.parentElement ? ground(element.parentElement) : backgroundColor
}

const imageOf = async (box, kind, title) => {
  const room = 26, layout = structuredClone(box.layout)
  layout.paper_bgcolor = ground(box)
  layout.height = box._fullLayout.height  // a resized picture has lost its own
  addStamp(layout, box.stamp, box.scale)
  if (box.legend.length) {
    layout.showlegend = true
    layout.margin.t += LEGEND
    layout.height += LEGEND
  }
  layout.margin.t += room
  layout.height += room
  const top = { yref: "container", y: 1, yanchor: "top", pad: { t: 8 } }
  layout.title = { text: escaped(title), x: 0, xref: "paper", xanchor: "left", font: { size: 14 }, ...top }
  const size = { width: box.clientWidth, height: layout.height, scale: kind === "png" ? 2 : 1 }
  const address = await window.Plotly.toImage({ data: box.data, layout }, { format: kind, ...size })
  return (await fetch(address)).blob()  // a data: address, so nothing is requested
}

const save = async (box, kind, { figure, stamp, title }) => {
  const table = () => new Blob([csvOf(JSON.parse(figure))], { type: "text/csv" })
  const blob = kind === "csv" ? table() : await imageOf(box, kind, title)
  const name = `${title} ${stamp}`.replace(/[^\p{L}\p{N}.]+/gu, "_").replace(/^_+|_+$/g, "")
  const link = Object.assign(make("a"), { href: URL.createObjectURL(blob), download: `${name}.${kind}` })
  link.click()
  setTimeout(() => URL.revokeObjectURL(link.href), 10000)
}

export const addButtons = (frame, box) => {
  const tools = Object.assign(make("div", "rl-save"), { role: "group" })
  for (const kind of ["png", "svg", "csv"]) {
    const button = Object.assign(make("button", "", kind.toUpperCase()), { type: "button" })
    button.onclick = () => save(box, kind, frame.saved)
    tools.append(button)
  }
  frame.append(tools)
}

// Set what the buttons save. This costs little, because the figure is parsed only when it is saved.
export const keepForSaving = (frame, data) => {
  if (frame.saved?.title !== data.title) {
    const tools = frame.querySelector(".rl-save")
    tools.setAttribute("aria-label", `Save ${data.title}`)
    for (const button of tools.children) {
      button.setAttribute("aria-label", `${data.title}: save as ${button.textContent}`)
    }
  }
  frame.saved = data
}
