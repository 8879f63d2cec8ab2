import { addButtons, addStamp, enlarge, keepForSaving } from "./saving.js"
import { sketch, textsOf } from "./sketching.js"

// Where a click lies on the horizontal axis. Plotly's own event needs a point under the mouse, and forgets it when the
// picture is redrawn.
const clicked = (box, event) => {
  const area = event.target.closest(".nsewdrag")
  if (box.send && area) box.send(box._fullLayout.xaxis.p2d(event.clientX - area.getBoundingClientRect().left))
}

// The figure as Plotly draws it on this page: in the size of its type, and with its source in it.
const prepared = (box, text) => {
  const figure = JSON.parse(text)
  const scale = parseFloat(getComputedStyle(document.documentElement).fontSize) / 16
  if (scale !== 1) {
    enlarge(figure.layout, scale)
    figure.layout.height *= scale
    for (const side of Object.keys(figure.layout.margin)) figure.layout.margin[side] *= scale
  }
  addStamp(figure.layout, box.stamp, scale)
  const style = getComputedStyle(box)
  figure.layout.font = { color: style.color, family: style.fontFamily, size: 12 * scale }
  return figure
}

// A moving picture is sketched where that is possible, a resting one is Plotly's own.
const draw = (box, { data, layout }, resting) => {
  const { shapes, ...rest } = layout
  const now = { rest: JSON.stringify(rest), lines: JSON.stringify(shapes), traces: data.map(textsOf) }
  const before = box.shown
  const isAlike = before?.rest === now.rest && before.traces.length === data.length
  const moved = isAlike ? [...data.keys()].filter((i) => now.traces[i].whole !== before.traces[i].whole) : []
  const isFixed = (i) => now.traces[i].fixed === before.traces[i].fixed
  const isDone = isAlike && !(resting && (moved.length || box.sketched)) && sketch(box, data, moved, isFixed)
  if (!isDone) window.Plotly.react(box, data, layout, { displayModeBar: false, responsive: true })
  else if (now.lines !== before.lines) window.Plotly.relayout(box, { shapes })  // and what is written on them
  box.sketched = isDone && (box.sketched || moved.length > 0)
  box.shown = now
}

export default function ({ data, parentElement, setTriggerValue }) {
  let box = parentElement.querySelector(".rl-picture")
  if (!box) {
    const frame = document.createElement("div")
    frame.className = "rl-frame"
    box = document.createElement("div")
    box.className = "rl-picture"
    box.setAttribute("role", "img")
    box.addEventListener("click", (event) => clicked(box, event))
    frame.append(box)
    addButtons(frame, box)
    parentElement.appendChild(frame)
  }
  box.setAttribute("aria-label", data.alt)
  box.send = data.clicks && ((x) => setTriggerValue("click", { x }))
  box.stamp = data.stamp
  box.redraw = (figure) => {  // while a threshold is dragged
    keepForSaving(box.parentElement, { ...data, figure })
    box.redrawn = true
    if (box.shown) draw(box, prepared(box, figure), false)
  }
  keepForSaving(box.parentElement, data)
  clearTimeout(box.waiting)
  const start = () => {
    if (!window.Plotly) { box.waiting = setTimeout(start, 30); return }
    const figure = prepared(box, data.figure)
    box.style.height = `${figure.layout.height}px`
    draw(box, figure, true)
    box.redrawn = false
  }
  box.restate = () => {
    if (!box.redrawn) return
    keepForSaving(box.parentElement, data)
    start()
  }
  start()
  return () => setTimeout(() => { if (!box.isConnected && window.Plotly) window.Plotly.purge(box) })
}
