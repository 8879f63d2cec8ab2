"""A range input that reports while it is dragged; st.slider reports only when the mouse is released."""

from collections.abc import Callable

import streamlit as st
from streamlit.components.v2 import component

from browser.restating import WRITE

HTML = """<label><span></span><b aria-hidden="true"></b>
<input type="range" min="0" max="600" step="1"></label>"""

CSS = """label { display: grid; grid-template-columns: 1fr auto; gap: 4px 8px; font-family: var(--st-font);
  font-size: 0.875rem; color: var(--st-text-color) }
b { font-variant-numeric: tabular-nums; font-weight: 600 }
input { grid-column: 1 / 3; width: 100%; height: 28px; margin: 0; cursor: pointer;
  accent-color: var(--st-primary-color) }
"""

# The position is logarithmic in the excess over `offset`, so that 1.001 and 50 are both easy to set. Only a new `token`
# moves the thumb: while somebody drags, nothing that the server says does. The function runs again whenever `data`
# changes, so what must outlive that is on the element. The page runs again once the thumb has rested, or something else
# is pressed; or while it moves, where no address answers.
JS = """
const STEPS = 600
const GAP = 40, GAP_OF_RERUNS = 60  // ms from one question to the next
const BUSY = 200  // ms: an answer that takes longer has waited for others, who wait for the next
const REST = 120  // ms from the last change until the page runs again

const draw = ({ texts, figures }) => {
  write(texts)
  for (const [key, figure] of Object.entries(figures)) {
    document.querySelector(`.st-key-${key} .rl-picture`)?.redraw(figure)
  }
}

// Nothing where the address no longer answers, as after a restart of the server.
const answered = async (address, value) => {
  const got = await fetch(new URL(`${address}?at=${value}`, document.baseURI))
  const isAnswer = got.ok && got.headers.get("content-type").startsWith("application/json")
  return isAnswer ? got.json() : null
}

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
  if (input.dataset.token !== String(data.token)) {
    input.dataset.token = data.token
    input.value = Math.round(STEPS * Math.log(Math.max(data.value - data.offset, data.low) / data.low) / scale)
    show(data.value)
  }
  const rerun = (done) => setStateValue("at", { value: value(), token: data.token, done })
  const ask = async () => {
    input.asking = true
    input.moved = input.overtaken = false
    const start = performance.now()
    const answer = data.address && await answered(data.address, value()).catch(() => null)
    const took = performance.now() - start, gap = data.address ? GAP : GAP_OF_RERUNS
    const pause = took < BUSY ? gap - took : took
    if (pause > 0) setTimeout(next, pause)
    else next()
    if (!input.isConnected || input.dataset.token !== String(data.token)) return  // another preset is shown by now
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
"""

_mount = component("rlcorr_live_slider", html=HTML, css=CSS, js=WRITE + JS)


def live_slider(
    label: str,
    value: float,
    *,
    low: float,
    high: float,
    offset: float,
    token: int,
    key: str,
    address: str | None,
    on_change: Callable[[float, bool], None],
) -> None:
    """From `offset` + `low` to `offset` + `high`. A new `token` puts the thumb back on `value`. While it moves it asks
    `address` (see drag.py); without one, the page runs again and again. `on_change` is called before it does, with the
    value, and whether it has been let go."""

    def changed() -> None:
        at = st.session_state[key]["at"]
        if at["token"] == token:
            on_change(float(at["value"]), bool(at["done"]))

    data = {"label": label, "value": value, "low": low, "high": high, "offset": offset, "token": token}
    _mount(data=data | {"address": address}, key=key, on_at_change=changed)
