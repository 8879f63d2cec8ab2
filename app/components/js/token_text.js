// Text enters the page through append and setAttribute only, so it is never markup. The function runs again with
// every bound that is dragged: it redraws only responses that have changed, and keeps focus and scroll position.

import { make } from "./dom.js"

const CLASSES = ["", "", "bounded", "bounded", "rejected"]

const drawLegend = (place, { words, palette, ticks }) => {
  const scale = make("span", "scale")
  for (const colour of palette) {
    const spot = make("i")
    spot.style.background = colour
    scale.append(spot)
  }
  ticks.forEach((text, i) => {
    const tick = make("b", "", text)
    tick.style.left = `${100 * i / (ticks.length - 1)}%`
    scale.append(tick)
  })
  const key = (className, text) => make("span", "", make("span", `token ${className}`, "Ab"), text)
  place.replaceChildren(make("span", "", words.ratio, scale), key("rejected", words.rejected), key("bounded", words.bounded))
}

const drawResponse = (response, { palette, fates }) => {
  const heading = Object.assign(make("div", "heading", response.heading), { role: "rowheader" })
  const cells = response.texts.map((text, i) => {
    const column = response.start + i, fate = response.fates[i], cell = make("span", `token ${CLASSES[fate]}`, text)
    cell.place = { row: response.row, column }
    cell.tabIndex = -1
    cell.style.backgroundColor = palette[response.shades[i]]
    cell.setAttribute("role", "gridcell")
    const said = [`token ${column}`, `ratio ${response.ratios[i]}`, fates[fate]].filter((part) => part)
    cell.setAttribute("aria-label", `${text}, ${said.join(", ")}`)
    cell.title = said.join(", ")
    return cell
  })
  const line = make("div", "line", make("span", "prompt", response.prompt))
  for (const cell of cells) line.append(cell)  // as arguments of one call, many cells would exceed the call stack
  return Object.assign(make("div", "response", heading, line), { role: "row" })
}

// Return the nearest token one line up or down, as the text is wrapped now.
const onNextLine = (cells, cell, step) => {
  const from = cell.getBoundingClientRect(), half = from.height / 2
  let best = cell, line, least = Infinity
  for (let i = cells.indexOf(cell) + step; i >= 0 && i < cells.length; i += step) {
    const at = cells[i].getBoundingClientRect()
    if (step * (at.top - from.top) < half) continue
    line ??= at.top
    if (Math.abs(at.top - line) > half) break
    const distance = Math.abs(at.left + at.right - from.left - from.right)
    if (distance < least) { best = cells[i]; least = distance }
  }
  return best
}

export default function ({ data, parentElement, setTriggerValue }) {
  const grid = parentElement.querySelector(".grid")
  const find = (place) => place && grid.cells.find((c) => c.place.row === place.row && c.place.column === place.column)
  const tabbable = (cell) => {
    if (grid.tabbable) grid.tabbable.tabIndex = -1
    if (cell) cell.tabIndex = 0
    grid.tabbable = cell
  }
  const mark = (cell) => {
    grid.open?.classList.remove("open")
    grid.open?.removeAttribute("aria-selected")
    cell?.classList.add("open")
    cell?.setAttribute("aria-selected", "true")
    grid.open = cell
  }
  const go = (cell) => { tabbable(cell); cell.focus() }
  const open = (cell) => { go(cell); mark(cell); setTriggerValue("open", cell.place) }

  const legend = JSON.stringify(data.legend), contents = data.responses.map((response) => JSON.stringify(response))
  if (grid.legend !== legend) {
    drawLegend(parentElement.querySelector(".legend"), data.legend)
    grid.setAttribute("aria-label", data.legend.words.grid)
    grid.legend = legend
  }
  const content = contents.join("\n")
  if (grid.content !== content || grid.followed) {
    const focused = parentElement.activeElement?.place
    const old = grid.followed ? new Map() : grid.drawn ?? new Map()
    grid.followed = false
    const boxes = data.responses.map((response, i) => old.get(contents[i]) ?? drawResponse(response, data.legend))
    grid.drawn = new Map(boxes.map((box, i) => [contents[i], box]))
    grid.replaceChildren(...boxes)
    grid.cells = [...grid.querySelectorAll(".token")]
    grid.content = content
    tabbable(find(focused) ?? find(data.opened) ?? grid.cells[0])
    if (focused) find(focused)?.focus({ preventScroll: true })
  }
  const opened = find(data.opened), name = JSON.stringify(data.opened)
  mark(opened)
  if (opened && grid.shown !== name) {  // scroll this box only; the page must not move
    const top = opened.getBoundingClientRect().top - grid.getBoundingClientRect().top
    if (top < 0 || top > grid.clientHeight - 30) grid.scrollTop += top - grid.clientHeight / 3
    tabbable(opened)
  }
  grid.shown = name

  const follow = ({ detail: { key, moved } }) => {  // while a bound is dragged
    if (key !== data.key) return
    for (const cell of grid.cells) {
      const fate = moved.cells.codes[cell.place.row * moved.cells.width + cell.place.column]
      for (const name of ["bounded", "rejected"]) cell.classList.toggle(name, CLASSES[fate] === name)
    }
    grid.followed = true
  }
  window.addEventListener("rlcorr-moved", follow)
  grid.onclick = (event) => { if (event.target.place) open(event.target) }
  grid.onkeydown = (event) => {
    const cell = event.target, at = grid.cells.indexOf(cell)
    if (at < 0 || event.ctrlKey || event.altKey || event.metaKey) return
    const moves = {
      ArrowRight: () => go(grid.cells[at + 1] ?? cell),
      ArrowLeft: () => go(grid.cells[at - 1] ?? cell),
      ArrowDown: () => go(onNextLine(grid.cells, cell, 1)),
      ArrowUp: () => go(onNextLine(grid.cells, cell, -1)),
      Enter: () => open(cell),
      " ": () => open(cell),
    }
    if (!(event.key in moves)) return
    event.preventDefault()
    moves[event.key]()
  }
  return () => window.removeEventListener("rlcorr-moved", follow)
}
