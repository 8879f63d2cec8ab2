// Fit the names of a picture's rows to its width: at the left of the rows, or above them on a narrow page.

import { ground } from "./export.js"

const NAMES_SHARE = 0.45  // of the width is left to names at the left of their rows
const WIDE_ENOUGH = 800  // px: in a wider picture that share is enough even for names that must be cut
const ROW_GROWS = { bar: 5, scatter: 11 }  // px, for a name above it
const BAR_BELOW = { width: 0.3, offset: 0.14 }  // of a bar below its name, as shares of its row
const RAISED = { bar: 5, scatter: 12 }  // px between a name and the middle of its row
const NAME_GAP = 14  // px between a name at the left and its row
const ruler = document.createElement("canvas").getContext("2d")

const nameWidth = (text) => ruler.measureText(text).width

// Return a name without its last words if it is too wide. What follows its " · " stays.
const shortened = (name, room) => {
  if (nameWidth(name) <= room) return name
  const [, text, end] = /^(.*?)( · .*)?$/.exec(name), words = text.split(" ")
  const cut = () => `${words.join(" ").replace(/,$/, "")} …${end ?? ""}`
  do words.pop(); while (words.length > 1 && nameWidth(cut()) > room)
  return cut()
}

// Change a figure that labels its rows with titles, before it is scaled. Return the width that it then fits, null for others.
export const fitRowNames = ({ data, layout }, box, scale) => {
  const { yaxis, margin } = layout, width = box.clientWidth / scale
  if (yaxis.type !== "category" || !yaxis.ticktext) return null
  ruler.font = `12px ${getComputedStyle(box).fontFamily}`
  const widest = Math.max(...yaxis.ticktext.map(nameWidth))
  if (widest <= width * NAMES_SHARE || width >= WIDE_ENOUGH) {
    const room = Math.min(widest, width * NAMES_SHARE)
    margin.l = room + NAME_GAP
    yaxis.ticktext = yaxis.ticktext.map((name) => shortened(name, room))
    return box.clientWidth
  }
  margin.l = 4
  const [rows] = data
  layout.height += ROW_GROWS[rows.type] * yaxis.ticktext.length
  yaxis.showticklabels = false
  const room = width - margin.l - margin.r, halo = `0 0 2px ${ground(box)}`
  if (rows.type === "bar") Object.assign(rows, BAR_BELOW)
  const look = { xref: "paper", x: 0, xanchor: "left", showarrow: false, borderpad: 0, yshift: RAISED[rows.type] * scale }
  const names = yaxis.ticktext.map((name, i) => {
    const font = { shadow: `${halo}, ${halo}, ${halo}` }  // lines are below it
    return { ...look, font, text: shortened(name, room), y: yaxis.tickvals[i] }
  })
  layout.annotations = [...(layout.annotations ?? []), ...names]
  return box.clientWidth
}
