// A range input that asks for what moves while it is dragged.
//
// The position is logarithmic in the excess over `offset`, so that 1.001 and 50 are both easy to set. Only a new
// `generation` moves the thumb: while somebody drags, nothing that the server says does. The function runs again
// whenever `data` changes, so what must outlive that is on the element. The page runs again once the thumb has rested,
// or something else is pressed; or while it moves, where no address answers.

import { answered, draw } from "./answers.js"

const STEPS = 600
const GAP = 40, GAP_OF_RERUNS = 60  // ms from one question to the next
const BUSY = 200  // ms: an answer that takes longer has waited for others, who wait for the next
const REST = 120  // ms from the last change until the page runs again

export default function ({ data, parentElement, setStateValue }) {
  const input = parentElement.querySelector("input"), shown = parentElement.querySelector("b")
  const scale = Math.log(data.high / data.low)
  const value = () => {
    const excess = data.low * Math.exp(scale * Number(input.value) / STEPS)
    return Number((data.offset + Number(excess.toPrecision(3))).toPrecision(12))
  }
  const show = (value) => {
    shown.textContent = String(Number(value.toPrecision(6)))
    input.setAttribute("aria-valuetext", shown.textContent)
  }
  parentElement.querySelector("span").textContent = data.label
  if (input.dataset.generation !== String(data.generation)) {
    input.dataset.generation = data.generation
    input.value = Math.round(STEPS * Math.log(Math.max(data.value - data.offset, data.low) / data.low) / scale)
    show(data.value)
  }
  const rerun = (done) => setStateValue("at", { value: value(), generation: data.generation, done })
  const ask = async () => {
    input.asking = true
    input.moved = input.overtaken = false
    const start = performance.now()
    const answer = data.address && await answered(data.address, value()).catch(() => null)
    const took = performance.now() - start, gap = data.address ? GAP : GAP_OF_RERUNS
    const pause = took < BUSY ? gap - took : took
    if (pause > 0) setTimeout(next, pause)
    else next()
    if (!input.isConnected || input.dataset.generation !== String(data.generation)) return  // another preset is shown by now
    if (input.overtaken) return
    if (answer) draw(answer)
    else rerun(false)
  }
  const next = () => {
    input.asking = false
    if (input.moved) ask()
  }
  const rest = () => {
    clearTimeout(input.resting)
    input.resting = null
    input.held = false
    rerun(true)
  }
  const move = () => {
    input.moved = true
    if (!input.asking) ask()
  }
  input.overtake = () => {  // a run of the page may know nothing of a thumb that is held
    input.overtaken = true
    if (input.held && value() !== data.value) move()
  }
  input.listener ??= () => input.overtake()
  window.addEventListener("rlcorr-run", input.listener)
  input.oninput = () => {
    show(value())
    input.held = true
    move()
  }
  input.onchange = () => {
    clearTimeout(input.resting)
    input.resting = setTimeout(rest, REST)
  }
  input.onblur = () => { if (input.resting) rest() }
  return () => window.removeEventListener("rlcorr-run", input.listener)
}
