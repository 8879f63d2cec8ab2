// Read what rlcorr/strips/packing.py writes; the layout is described there.
const ARRAYS_OF_STRIPS = { u1: Uint8Array, u2: Uint16Array, i4: Int32Array }

export const bytesOf = async (packed) => {
  const whole = new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate"))
  return new Response(whole).arrayBuffer()
}

const summed = (array, width) => {
  for (let i = width; i < array.length; i++) array[i] += array[i - width]
  return array
}

// What rlcorr/strips/json_columns.py compressed.
const unfolded = (node) => {
  if (Array.isArray(node)) return node.map(unfolded)
  if (node === null || typeof node !== "object") return node
  const count = { length: node.count }
  if ("~same" in node) return Array.from(count, () => unfolded(node["~same"]))
  if ("~around" in node) return node.of.map((middle) => node["~around"][0] + middle + node["~around"][1])
  if ("~rows" in node) {
    const rows = node["~rows"].map(unfolded)
    return Array.from(count, (_, i) => rows.map((row) => row[i]))
  }
  const parts = Object.entries(node["~columns"] ?? node).map(([key, part]) => [key, unfolded(part)])
  if (!("~columns" in node)) return Object.fromEntries(parts)
  return Array.from(count, (_, i) => Object.fromEntries(parts.map(([key, column]) => [key, column[i]])))
}

// Return the arrays of a strip by name, each with its shape, and its other data (`about`).
export const readStrip = async (packed) => {
  const whole = await bytesOf(packed), length = new DataView(whole).getUint32(0, true)
  const head = JSON.parse(new TextDecoder().decode(new Uint8Array(whole, 4, length)))
  if (head.version !== 2) throw new Error(`this strip has version ${head.version}; this page reads version 2`)
  const arrays = {}
  for (const [name, { dtype, shape, at, differences }] of Object.entries(head.arrays)) {
    const count = shape.reduce((product, size) => product * size, 1)
    const values = new ARRAYS_OF_STRIPS[dtype](whole, 4 + length + at, count)
    arrays[name] = { shape, values: differences ? summed(values, shape[1]) : values }
  }
  return { arrays, about: unfolded(head.about) }
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
