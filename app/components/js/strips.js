// Strips: read what rlcorr/strips/packing.py writes, whose layout is described there, and look up slider positions.

const ARRAYS_OF_STRIPS = { u1: Uint8Array, u2: Uint16Array, i4: Int32Array }

export const bytesOf = async (packed) => {
  const whole = new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate"))
  return new Response(whole).arrayBuffer()
}

const summed = (array, width) => {
  for (let i = width; i < array.length; i++) array[i] += array[i - width]
  return array
}

// Return the arrays of a strip by name, each with its shape, and its other data (`about`).
export const readStrip = async (packed) => {
  const whole = await bytesOf(packed), length = new DataView(whole).getUint32(0, true)
  const head = JSON.parse(new TextDecoder().decode(new Uint8Array(whole, 4, length)))
  if (head.version !== 3) throw new Error(`this strip has version ${head.version}; this page reads version 3`)
  const arrays = {}
  for (const [name, { dtype, shape, at, differences }] of Object.entries(head.arrays)) {
    const count = shape.reduce((product, size) => product * size, 1)
    const values = new ARRAYS_OF_STRIPS[dtype](whole, 4 + length + at, count)
    arrays[name] = { shape, values: differences ? summed(values, shape[1]) : values }
  }
  return { arrays, about: head.about }
}

// Address → strip, for the strips that are loaded already.
export const strips = new Map()

// Return a strip; null if the address no longer answers, for example after a restart, or if the correction refuses a bound.
export const fetched = async (address) => {
  if (strips.has(address)) return strips.get(address)
  const response = await fetch(new URL(address, document.baseURI))
  const isStrip = response.ok && response.headers.get("content-type").startsWith("application/octet-stream")
  return isStrip ? readStrip(await response.arrayBuffer()) : null
}

// --- look up one slider position: numbers, texts, and what moves in pictures; nothing is computed here ---

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

// Write into `codes`, row by row, the codes that the cells of a mask have at one slider position.
export const cellsAt = (strip, place, codes) => {
  codes.set(strip.arrays["cells/base"].values)
  for (const [name, { values }] of Object.entries(strip.arrays)) {
    const [of, when, which] = name.split("/")
    if (of !== "cells" || when === "base") continue
    const isUntil = when === "until", code = Number(which)
    for (let i = 0; i < codes.length; i++) if (values[i] > place === isUntil && codes[i] < code) codes[i] = code
  }
  return codes
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
