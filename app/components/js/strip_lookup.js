// Look up one slider position in a strip: numbers, texts, and what moves in pictures. Nothing is computed here.

import { cellsAt } from "./strip_reading.js"

const at = (columns, place) =>
  Object.fromEntries(Object.entries(columns).map(([name, values]) => [name, values[place]]))

const numbersAt = ({ numbers, beside }, place) =>
  Object.fromEntries(Object.entries(numbers).map(([label, texts]) => [
    label, { text: texts[place], beside: beside[label]?.[place] ?? null },
  ]))

const heightsAt = (strip, name, place) => {
  const { shape, values } = strip.arrays[name]
  return values.subarray(place * shape[1], (place + 1) * shape[1])
}

const cells = (strip, place) => {
  const [height, width] = strip.arrays["cells/base"].shape
  strip.codes ??= new Uint8Array(height * width)
  return { codes: cellsAt(strip, place, strip.codes), height, width }
}

export const placeOf = (strip, place) => {
  const pictures = Object.entries(strip.about.pictures).map(([key, moves]) => [key, {
    bars: Object.entries(moves.bars).map(([trace, name]) => [trace, heightsAt(strip, name, place)]),
    cells: moves.cells ? cells(strip, place) : null,
    shapes: moves.shapes === null ? null : strip.about.shapes[moves.shapes][place],
    figure: moves.figures?.[place] ?? null,
  }])
  return {
    numbers: numbersAt(strip.about, place), texts: at(strip.about.texts, place), tables: at(strip.about.tables, place),
    pictures: Object.fromEntries(pictures),
  }
}

// Return the x of the vertical line that moves in a picture, for each slider position, in coordinates of the axis. Return
// null if there is none, or if it turns back on its way, because then an x has several slider positions.
export const movingLine = (strip, key) => {
  const moves = strip.about.pictures[key]
  if (!moves || moves.shapes === null) return null
  strip.lines ??= new Map()
  if (!strip.lines.has(key)) strip.lines.set(key, lineOf(strip.about.shapes[moves.shapes]))
  return strip.lines.get(key)
}

const lineOf = (shapes) => {
  const isUpright = ({ type, x0, x1, xref, yref }) => type === "line" && x0 === x1 && xref !== "paper" && yref === "paper"
  const upright = shapes.map((lines) => lines.filter(isUpright).map(({ x0 }) => x0))
  const still = new Set(upright[0].filter((x) => upright.every((xs) => xs.includes(x))))
  const moving = upright.map((xs) => xs.filter((x, i) => !still.has(x) || xs.indexOf(x) !== i))  // it may coincide with a line that does not move
  if (!moving.every((xs) => xs.length === 1)) return null
  const line = moving.map(([x]) => x), steps = line.slice(1).map((x, i) => x - line[i])
  return steps.every((step) => step >= 0) || steps.every((step) => step <= 0) ? line : null
}
