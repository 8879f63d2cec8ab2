// A range input over a list of values. While it is dragged it draws what changes, from the strip with all its positions;
// nothing until the strip is loaded, or if there is none. A position (`place`) is an index of the list.
//
// Only a new generation or another list of values moves the thumb. While somebody drags, no message of the server does.
// The page runs again when the thumb has rested or something else is pressed.

import { make, put } from "./dom.js"
import { fetched, placeOf } from "./strips.js"

const REST = 120  // ms from the last change until the page runs again

const elements = () => {
  const name = make("span"), shown = make("b"), input = make("input"), typed = make("input", "rl-typed")
  const text = make("p", "rl-text"), wrong = make("p", "rl-wrong")
  wrong.setAttribute("role", "alert")
  Object.assign(input, { type: "range", min: 0, step: 1 })
  Object.assign(typed, { type: "text", inputMode: "decimal", autocomplete: "off" })
  shown.ariaHidden = "true"
  const slider = make("div", "rl-slider", make("label", "", name, input), shown, typed, wrong, text)
  return Object.assign(slider, { name, shown, input, typed, wrong, text })
}

const written = (number) => String(Number(number.toPrecision(6)))

// Return why a typed text is refused; an empty text if it is a number within the limits.
const refusal = (typed, [low, high]) => {
  const allowed = `a number from ${written(low)} to ${written(high)}`
  if (typed.trim() === "") return `Type ${allowed}.`
  const number = Number(typed)
  if (Number.isNaN(number)) return `“${typed}” is not a number. Type ${allowed}.`
  return number >= low && number <= high ? "" : `${typed} is out of range. Type ${allowed}.`
}

export const makeSlider = (draw) => {
  const slider = elements(), { input, typed, wrong } = slider
  let data = null, tell = null, values = [], listedValues = "", looked = null, frame = null, resting = null
  let held = false
  const value = () => values[Number(input.value)]
  const say = (value) => {
    put(slider.shown, written(value))
    typed.value = slider.shown.textContent
    typed.setCustomValidity("")
    input.style.setProperty("--rl-filled", Number(input.value) / Math.max(values.length - 1, 1))
    input.setAttribute("aria-valuetext", slider.shown.textContent)
  }
  const isReady = () => looked !== null && looked.of === data.strip
  const load = async () => {
    const of = data.strip
    if (!of || looked?.of === of) return
    const strip = await fetched(of).catch(() => null)
    if (!strip || of !== data.strip) return
    looked = { of, strip }
    if (held) move()
  }
  const look = () => {
    frame = null
    if (slider.isConnected && isReady()) draw(placeOf(looked.strip, Number(input.value)))
  }
  const move = () => { frame ??= requestAnimationFrame(look) }
  const rerun = (value) => tell.moved(data.key, { value, generation: data.generation })
  const rest = () => {
    clearTimeout(resting)
    resting = null
    held = false
    rerun(value())
  }
  input.oninput = () => {
    if (!held) tell.started?.(data.key)
    put(wrong, "")
    say(value())
    held = true
    move()
  }
  input.onchange = () => {
    clearTimeout(resting)
    resting = setTimeout(rest, REST)
  }
  typed.onchange = () => {
    const refused = refusal(typed.value, data.exact), exact = Number(typed.value)
    put(wrong, refused)
    typed.setCustomValidity(refused)
    if (refused) return
    if (!values.includes(exact)) {  // the next run of the page has it among its values
      rerun(exact)
      return
    }
    slider.put(exact)
    rest()
  }
  typed.oninput = () => {
    put(wrong, "")
    typed.setCustomValidity("")
  }
  typed.onblur = () => { if (!typed.validity.valid) say(value()) }
  slider.put = (value) => {  // one of its values, without a word to the server
    input.value = values.indexOf(value)
    say(value)
  }
  slider.place = () => Number(input.value)
  slider.pull = (place) => {
    if (place === slider.place()) return
    input.value = place
    input.dispatchEvent(new Event("input"))  // the Lab listens, too
  }
  slider.letGo = () => {
    if (held) input.onchange()
  }
  slider.strip = () => (isReady() ? looked.strip : null)
  slider.load = load
  input.onblur = () => { if (resting) rest() }
  slider.isAhead = () => held && value() !== data.value
  slider.isQuiet = () => frame === null
  slider.isReady = isReady
  slider.overtake = () => { if (slider.isAhead()) move() }  // a run of the page may not know that the thumb is held
  slider.show = (now, of) => {
    const isOther = data?.generation !== now.generation, listed = JSON.stringify(now.values)
    data = now
    slider.of = now.text
    slider.dataset.slider = now.key
    tell = of
    if (isOther) held = false
    if (isOther || (listed !== listedValues && !held)) {  // a held thumb keeps the values that it points at
      values = now.values
      listedValues = listed
      input.max = now.values.length - 1
      slider.put(now.value)
    }
    put(slider.name, now.label)
    slider.name.title = now.help
    slider.shown.hidden = now.exact !== null
    typed.hidden = now.exact === null
    typed.ariaLabel = now.label
  }
  return slider
}
