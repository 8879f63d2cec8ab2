// Read the files of the static site. Parts that many of them have are in shared.bin.

import { rested } from "./pictures.js"
import { placeOf, readStrip, strips } from "./strips.js"

// Put in the parts of shared.bin that a node refers to.
const whole = (node, parts) => {
  if (Array.isArray(node)) return node.map((part) => whole(part, parts))
  if (node === null || typeof node !== "object") return node
  if ("~shared" in node) return parts[node["~shared"]]
  return Object.fromEntries(Object.entries(node).map(([key, part]) => [key, whole(part, parts)]))
}

// Read a file of the site. Its figures are objects that may have shared parts; a live part takes them as texts.
export const readWhole = async (packed, parts) => {
  const { arrays, about: referring } = await readStrip(packed), about = whole(referring, parts), { part, rows } = about
  const asText = (picture) => (
    picture.figure ? { ...picture, figure: JSON.stringify(picture.figure), alt: picture.alt.join("") } : picture)
  const asTexts = (pictures) => pictures.map((row) => row.map(asText))
  if (part) return { arrays, about: { ...about, part: { ...part, rows: asTexts(part.rows) } } }
  return { arrays, about: rows ? { ...about, rows: asTexts(rows) } : about }
}

const bytesAt = async (address) => {
  const response = await fetch(new URL(address, document.baseURI))
  if (!response.ok) throw new Error(`${address}: ${response.status}`)
  return response.arrayBuffer()
}

let shared

// Return a strip. `site` is the way from the page to the folder of the site.
export const stripAt = async (address, site = "") => {
  if (!strips.has(address)) {
    shared ??= bytesAt(`${site}shared.bin`).then(readStrip)
    const [packed, { about }] = await Promise.all([bytesAt(`${site}${address}`), shared])
    strips.set(address, await readWhole(packed, about.parts))
  }
  return strips.get(address)
}

// Return the index of the value that is nearest to this one.
export const nearest = (values, value) => {
  const distances = values.map((other) => Math.abs(other - value))
  return distances.indexOf(Math.min(...distances))
}

// Put the heights of bars and the cells of masks into the figures of a live part, from the strip of its first slider.
export const wholeRows = ({ sliders: [slider], rows }, strip) => {
  if (!slider) return rows
  const moved = placeOf(strip, slider.values.indexOf(slider.value)).pictures
  return rows.map((row) => row.map((picture) => {
    if (picture.words) return picture
    const { bars, cells } = moved[picture.key] ?? { bars: [], cells: null }
    return { ...picture, figure: rested(picture.figure, { bars, cells, shapes: null, figure: null }) }
  }))
}
