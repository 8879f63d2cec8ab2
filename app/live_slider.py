"""A range input that reports while it is dragged; st.slider reports only when the mouse is released."""

from dataclasses import dataclass

from streamlit.components.v2 import component

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
# changes, so the timer lives on the element.
JS = """
const THROTTLE = 60  // ms
const STEPS = 600
export default function ({ data, parentElement, setStateValue }) {
  const input = parentElement.querySelector("input"), shown = parentElement.querySelector("b")
  const scale = Math.log(data.high / data.low)
  const valueAt = (position) => {
    const excess = data.low * Math.exp(scale * position / STEPS)
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
  const send = (done) => {
    clearTimeout(input.timer)
    input.timer = null
    input.sent = performance.now()
    setStateValue("at", { value: valueAt(Number(input.value)), token: data.token, done })
  }
  input.oninput = () => {
    show(valueAt(Number(input.value)))
    const rest = THROTTLE - (performance.now() - (input.sent ?? 0))
    if (rest <= 0) send(false)
    else input.timer ??= setTimeout(() => send(false), rest)
  }
  input.onchange = () => send(true)
}
"""

_mount = component("rlcorr_live_slider", html=HTML, css=CSS, js=JS)


@dataclass(frozen=True)
class Moved:
    """Where the slider is; `done` once it has been let go."""

    value: float
    done: bool


def live_slider(label: str, value: float, *, low: float, high: float, offset: float, token: int, key: str) -> Moved:
    """The value, `offset` + an excess between `low` and `high`. A new `token` puts the thumb back on `value`."""
    data = {"label": label, "value": value, "low": low, "high": high, "offset": offset, "token": token}
    state = _mount(data=data, key=key, on_at_change=lambda: None)
    at = state.at
    if at is None or at["token"] != token:
        return Moved(value, True)
    return Moved(float(at["value"]), bool(at["done"]))
