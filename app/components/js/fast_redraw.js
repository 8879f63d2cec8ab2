// Redraw pictures quickly while a bound is dragged: write the heights of bars and the colours of cells directly into the
// elements that Plotly made.
//
// Plotly.react redraws everything, which takes 30 to 40 ms for a histogram or a mask. While a bound is dragged only bars
// and cells change, and lines, which Plotly.relayout moves in 1 ms. So a picture is sketched here while it moves, and
// drawn by Plotly.react when it rests. Only then do hover texts and zoom have the new numbers.

// Return the numbers of a list. Plotly sends long lists as base64 of their bytes.
const ARRAYS = {
  f8: Float64Array, f4: Float32Array, i4: Int32Array, u4: Uint32Array, i2: Int16Array, u2: Uint16Array, i1: Int8Array,
  u1: Uint8Array,
}

export const unpacked = (values) => {
  if (values === undefined || values === null || Array.isArray(values)) return values
  const bytes = Uint8Array.from(atob(values.bdata), (c) => c.charCodeAt(0))
  const flat = Array.from(new ARRAYS[values.dtype](bytes.buffer))
  if (values.shape === undefined) return flat
  const columns = Number(String(values.shape).split(",")[1])
  return Array.from({ length: flat.length / columns }, (_, i) => flat.slice(i * columns, (i + 1) * columns))
}

// Return a trace as text: all of it, and without the heights of bars.
export const textsOf = (trace) => ({ whole: JSON.stringify(trace), fixed: JSON.stringify({ ...trace, y: null }) })

// Round a side of a bar to whole pixels as Plotly does. A bar of less than two pixels is made wider to be visible.
const onPixel = (side, other) => {
  if (Math.abs(side - other) >= 2) return Math.round(side)
  return side > other ? Math.ceil(side) : Math.floor(side)
}

// Draw the bars of a trace with these heights.
export const drawBars = (box, index, heights) => {
  const { xaxis, yaxis } = box._fullLayout, bottom = Math.round(yaxis._length)
  const nth = box.data.slice(0, index).filter(({ type }) => type === "bar").length
  const bars = box.querySelectorAll(".barlayer .trace.bars")[nth].querySelectorAll(".point path")
  box.calcdata[index].forEach(({ p0, p1 }, i) => {
    const left = onPixel(xaxis.c2p(p0), xaxis.c2p(p1)), right = onPixel(xaxis.c2p(p1), left)
    const top = Math.round(yaxis.c2p(heights[i]))
    bars[i].setAttribute("d", heights[i] > 0 ? `M${left},${bottom}V${top}H${right}V${bottom}Z` : "M0,0Z")
  })
}

// Return the colours of a scale with steps, each as the four bytes of a canvas.
const paletteOf = (scale) => {
  const canvas = Object.assign(document.createElement("canvas"), { width: scale.length / 2, height: 1 })
  const pen = canvas.getContext("2d", { willReadFrequently: true })
  for (let code = 0; code < canvas.width; code++) {
    pen.fillStyle = scale[2 * code][1]
    pen.fillRect(code, 0, 1, 1)
  }
  return new Uint32Array(pen.getImageData(0, 0, canvas.width, 1).data.buffer)
}

// Draw the cells of a mask; the codes are listed row by row.
export const drawCells = (box, { codes, height, width }, colorscale) => {
  const size = [height, width, ...colorscale].join()
  if (box.mask?.size !== size) {
    const canvas = Object.assign(document.createElement("canvas"), { width, height })
    const pen = canvas.getContext("2d", { willReadFrequently: true })  // read with every redraw
    box.mask = { size, canvas, pen, image: pen.createImageData(width, height), palette: paletteOf(colorscale) }
  }
  const { canvas, pen, image, palette } = box.mask, cells = new Uint32Array(image.data.buffer)
  for (let i = 0; i < cells.length; i++) cells[i] = palette[codes[i]]
  pen.putImageData(image, 0, 0)
  const shown = box.querySelector(".heatmaplayer image")
  shown.setAttributeNS("http://www.w3.org/1999/xlink", "xlink:href", canvas.toDataURL())  // as Plotly does
}

// Check whether all of a mask is visible with the first row on top. Other views cannot be drawn here.
export const isWhole = ({ _fullLayout: { xaxis, yaxis } }) =>
  xaxis.autorange && yaxis.autorange && yaxis.range[0] > yaxis.range[1]

// Draw the traces that changed, if only heights of bars did, and return whether that was so.
export const sketch = (box, traces, moved, isFixed) => {
  if (!moved.every((i) => traces[i].type === "bar" && isFixed(i))) return false
  for (const i of moved) drawBars(box, i, unpacked(traces[i].y))
  return true
}
