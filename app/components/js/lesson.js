// A live part between the paragraphs of a lesson's page. The page asks for this script when the part comes near.
//
// The text above the part has the bound as a number, which can be dragged, too.

import { livePart, restAt } from "./live_part_view.js"
import { nearest, stripAt, wholeRows } from "./site_files.js"
import { placeOf } from "./strips.js"

const SITE = `${document.documentElement.dataset.content_root}../`
const STEP = 4  // px that a pointer moves for one slider value
const KEYS = { ArrowLeft: -1, ArrowDown: -1, ArrowRight: 1, ArrowUp: 1, PageDown: -10, PageUp: 10, Home: -Infinity, End: Infinity }

// Make a number of the text a handle of the slider with these values.
const bindNumber = (number, slider, { label, values }) => {
  const shown = slider.querySelector("b"), last = values.length - 1
  const pull = (place) => slider.pull(Math.min(Math.max(place, 0), last))
  let start = null
  const say = () => {
    number.textContent = shown.textContent
    number.ariaValueNow = number.ariaValueText = shown.textContent
  }
  Object.assign(number, { tabIndex: 0, role: "slider", ariaLabel: label })
  Object.assign(number, { ariaValueMin: Math.min(...values), ariaValueMax: Math.max(...values) })
  number.classList.add("pulled")
  number.onpointerdown = (event) => {
    if (event.button !== 0) return
    event.preventDefault()  // no selection of text
    number.focus()
    number.setPointerCapture(event.pointerId)
    start = { x: event.clientX, place: slider.place() }
  }
  number.onpointermove = ({ clientX }) => { if (start) pull(start.place + Math.round((clientX - start.x) / STEP)) }
  number.onpointerup = number.onpointercancel = () => {
    start = null
    slider.letGo()
  }
  number.onkeydown = (event) => {
    if (!(event.key in KEYS)) return
    event.preventDefault()
    pull(slider.place() + KEYS[event.key])
    slider.letGo()
  }
  new MutationObserver(say).observe(shown, { childList: true })
  say()
}

// Show the part that the attributes of the host describe, from the files of the site.
window.showLessonPart = async (host) => {
  const { run, preset, bound, value, pictures, numbers } = host.dataset
  const { bench } = (await stripAt(`preset/${preset}.bin`, SITE)).about, address = `bench/${run}/${bench}.bin`
  const strip = await stripAt(address, SITE), data = structuredClone(strip.about.part), [slider] = data.sliders
  const root = host.querySelector(".live-part"), link = host.querySelector("a.go"), wanted = pictures.split(" ")
  const usual = slider.value
  const rest = (value) => {
    const query = new URLSearchParams(link.search)
    query.set(bound, value)
    link.search = query
    restAt(root, placeOf(strip, slider.values.indexOf(value)))
  }
  const show = (value) => {
    Object.assign(slider, { value, generation: slider.generation + 1, strip: address })
    livePart(root, data, {
      moved: (_, { value }) => rest(value),
      reset: () => {
        show(usual)
        rest(usual)
      },
    })
  }
  data.rows = [wholeRows(data, strip).flat().filter(({ key }) => wanted.includes(key))]
  data.numbers = data.numbers.filter(({ label }) => numbers.split(", ").includes(label))
  data.notes = []
  const first = slider.values[nearest(slider.values, Number(value))]
  show(first)
  rest(first)
  // A lesson has one live part; its numbers are in the paragraph above it.
  for (const number of document.querySelectorAll(".pull")) bindNumber(number, root.querySelector(".rl-slider"), slider)
}
