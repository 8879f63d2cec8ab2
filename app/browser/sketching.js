// Pictures that follow a dragged threshold: heights of bars and colours of cells, put straight into what Plotly drew.
//
// Plotly.react draws everything anew, 30 to 40 ms for a histogram or a mask, whatever has changed. While a threshold is
// dragged only these two change, and lines that Plotly.relayout moves in 1 ms. So a picture is sketched while it moves,
// and drawn by Plotly.react when it rests: only then do hover texts and zoom know the new numbers.

import { unpacked } from "./unpacking.js"

const VARIES = { bar: "y", heatmap: "z" }  // what of a trace can be sketched

// A trace as text, whole and without what can be sketched.
export const textsOf = (trace) => {
  const { [VARIES[trace.type]]: varies, ...fixed } = trace
  return { whole: JSON.stringify(trace), fixed: JSON.stringify(fixed) }
}

const sketchBars = (box, index, trace) => {
  const { xaxis, yaxis } = box._fullLayout, heights = unpacked(trace.y), bottom = Math.round(yaxis._length)
  const nth = box.data.slice(0, index).filter(({ type }) => type === "bar").length
  const bars = box.querySelectorAll(".barlayer .trace.bars")[nth].querySelectorAll(".point path")
  box.calcdata[index].forEach(({ p0, p1 }, i) => {
    const [left, right] = [p0, p1].map((p) => Math.round(xaxis.c2p(p))), top = Math.round(yaxis.c2p(heights[i]))
    bars[i].setAttribute("d", heights[i] > 0 ? `M${left},${bottom}V${top}H${right}V${bottom}Z` : "M0,0Z")
  })
}

// The colours of a scale with steps, each as the four bytes of a canvas.
const paletteOf = (scale) => {
  const canvas = Object.assign(document.createElement("canvas"), { width: scale.length / 2, height: 1 })
  const pen = canvas.getContext("2d", { willReadFrequently: true })
  for (let code = 0; code < canvas.width; code++) {
    pen.fillStyle = scale[2 * code][1]
    pen.fillRect(code, 0, 1, 1)
  }
  return new Uint32Array(pen.getImageData(0, 0, canvas.width, 1).data.buffer)
}

const sketchCells = (box, trace) => {
  const [height, width] = trace.z.shape.split(",").map(Number), codes = atob(trace.z.bdata)
  const canvas = Object.assign(document.createElement("canvas"), { width, height })
  const pen = canvas.getContext("2d"), image = pen.createImageData(width, height)
  const palette = paletteOf(trace.colorscale), cells = new Uint32Array(image.data.buffer)
  for (let i = 0; i < cells.length; i++) cells[i] = palette[codes.charCodeAt(i)]
  pen.putImageData(image, 0, 0)
  const shown = box.querySelector(".heatmaplayer image")
  shown.setAttributeNS("http://www.w3.org/1999/xlink", "xlink:href", canvas.toDataURL())  // where Plotly writes it
}

// Whether these traces could be drawn so; a mask only as a whole, and first row on top, as Plotly has drawn it.
export const sketch = (box, traces, moved, isFixed) => {
  const { xaxis, yaxis } = box._fullLayout
  const isWhole = xaxis.autorange && yaxis.autorange && yaxis.range[0] > yaxis.range[1]
  const can = (i) => isFixed(i) && (traces[i].type === "bar" || (traces[i].type === "heatmap" && isWhole))
  if (!moved.every(can)) return false
  for (const i of moved) traces[i].type === "bar" ? sketchBars(box, i, traces[i]) : sketchCells(box, traces[i])
  return true
}
