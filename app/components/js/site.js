// The static site. The fragment of the address has the selection, and everything that is shown is read from files next to
// the page. The first story is in the page itself.

import { strips } from "./server.js"
import { livePart, restAt } from "./live_part_view.js"
import { placeOf } from "./strip_lookup.js"
import { make, put } from "./dom.js"
import { nearest, readWhole, stripAt } from "./site_files.js"
import { bytesOf } from "./strip_reading.js"

const element = (id) => document.getElementById(id)
const facts = JSON.parse(element("facts").textContent)
const VIEWS = ["start", "bench", "mismatch", "gradient", "study"]
const unpackedBytes = (text) => Uint8Array.from(atob(text), (c) => c.charCodeAt(0))
let renewals = 0  // a part that is shown again gets a new number, so its thumb takes the value of the address

const tell = (text) => {
  const said = element("told")
  said.hidden = !text
  put(said, text)
}

// --- the address ---

// Links of the lessons have their query before the #, as links of the app do.
if (location.search && !location.hash) {
  history.replaceState(null, "", `${location.pathname}#${location.search.slice(1)}`)
}

const given = () => Object.fromEntries(new URLSearchParams(location.hash.slice(1)))

const addressOf = (chosen) => {
  const query = Object.entries(chosen).filter(([, value]) => value !== undefined && value !== "")
  return `#${new URLSearchParams(query)}`
}

const go = (changes) => {
  history.pushState(null, "", addressOf({ ...given(), ...changes }))
  show()
}

const note = (changes) => history.replaceState(null, "", addressOf({ ...given(), ...changes }))

// Return the selection, and sentences about names in the address that do not exist here.
const chosen = () => {
  const state = given(), wrong = []
  const one = (key, options, usual) => {
    if (options.includes(state[key])) return state[key]
    if (state[key] !== undefined) {
      wrong.push(facts.words.WRONG.replace("{name}", `${key}=${state[key]}`).replace("{shown}", usual))
    }
    return usual
  }
  const view = one("view", VIEWS, "start"), run = view === "gradient" ? facts.sketched : facts.run
  return {
    view, run: one("run", Object.keys(facts.runs), run), wrong,
    preset: one("preset", Object.keys(facts.presets), facts.preset), study: one("study", facts.studies, facts.studies[0]),
    system: one("system", facts.systems, facts.systems[0]), values: state,
  }
}

// --- files ---

const fileOf = (view, run, preset) => `${view}/${run}/${facts.presets[preset].like}.bin`

// --- what is shown ---

// Show a live part with a strip. `key` is the key of its value in the address; `moved` gets the position of the thumb when
// it is let go.
const showStrip = (root, address, strip, key, { moved = () => {}, plays = false, hurts = "" } = {}) => {
  const data = structuredClone(strip.about.part), [slider] = data.sliders, usual = slider.value
  if (hurts) data.notes.at(-1).lead = hurts  // another preset may have the same numbers
  const value = Number(given()[key] ?? usual), place = nearest(slider.values, Number.isFinite(value) ? value : usual)
  const rest = (at) => {
    restAt(root, placeOf(strip, at))
    moved(at)
  }
  Object.assign(slider, { value: slider.values[place], generation: ++renewals, strip: address })
  if (plays) slider.plays_to = slider.values[Math.round(slider.values.length / 5)]
  livePart(root, data, {
    moved: (_, { value, done }) => {
      if (!done) return
      note({ [key]: value === usual ? undefined : value })
      rest(slider.values.indexOf(value))
    },
    reset: () => {
      note({ [key]: undefined })
      showStrip(root, address, strip, key, { moved, hurts })
    },
  })
  if (slider.value !== usual) rest(place)
  else moved(place)
}

const showSentences = (host, sentences) => {
  host.replaceChildren(...sentences.map((sentence, i) => Object.assign(make(i ? "p" : "h2"), { textContent: sentence })))
}

const showExported = async (preset, place) => {
  if (!element("use").open) return
  const { systems } = (await stripAt(`use/${preset}.bin`)).about
  const lines = systems[element("system").value].map((line) => (Array.isArray(line) ? line[place] : line))
  put(element("exported"), lines.join("\n").trimEnd())
  put(element("copied"), "")
}

const SHOW = {
  start: async () => {
    const address = fileOf("bench", facts.run, facts.preset)
    if (!strips.has(address)) strips.set(address, await readWhole(unpackedBytes(facts.first), []))
    const { bound, hurts } = facts.presets[facts.preset]
    showStrip(element("first"), address, strips.get(address), bound, { hurts, plays: true })
  },
  bench: async ({ run, preset, system }) => {
    const address = fileOf("bench", run, preset), strip = await stripAt(address), { bound, hurts } = facts.presets[preset]
    element("system").value = system
    const moved = (place) => {
      element("use").shown = () => showExported(preset, place)
      element("use").shown()
    }
    return () => showStrip(element("bench"), address, strip, bound, { moved, hurts })
  },
  gradient: async ({ run, preset }) => {
    const { gradients } = facts.runs[run], hasCurve = gradients.includes(facts.presets[preset].like)
    const addresses = [...(hasCurve ? [fileOf("gradient", run, preset)] : []), ...(gradients.length ? [`ranking/${run}.bin`] : [])]
    const read = await Promise.all(addresses.map(stripAt))
    return () => {
      showSentences(element("gradient-said"), gradients.length ? hasCurve ? [] : [facts.words.NO_CURVE] : [facts.words.NO_SKETCH])
      element("gradient").hidden = !hasCurve
      element("ranking").hidden = !gradients.length
      if (hasCurve) showStrip(element("gradient"), addresses[0], read[0], facts.presets[preset].bound)
      if (gradients.length) showStrip(element("ranking"), addresses.at(-1), read.at(-1), "answers")
    }
  },
  mismatch: ({ run }) => showPart("mismatch", `mismatch/${run}.bin`),
  study: ({ study }) => showPart("study", `study/${study}.bin`),
}

const showPart = async (view, address) => {
  const { part, sentences } = (await stripAt(address)).about
  return () => {
    showSentences(element(`${view}-said`), sentences)
    livePart(element(view), part, {})
  }
}

let shows = 0

// What was chosen before cannot be moved while the file of the new choice is on its way.
const show = async () => {
  const now = chosen(), { view } = now, mine = ++shows
  const section = document.querySelector(`[data-shown="${view}"]`)
  section.inert = true
  for (const section of document.querySelectorAll("[data-shown]")) section.hidden = section.dataset.shown !== view
  for (const link of document.querySelectorAll("[data-view]")) {
    if (link.dataset.view === view) link.setAttribute("aria-current", "page")
    else link.removeAttribute("aria-current")
    link.href = addressOf({ ...now.values, view: link.dataset.view })
  }
  element("pickers").hidden = view === "start"
  element("run-label").hidden = view === "study"
  element("preset-label").hidden = !["bench", "gradient"].includes(view)
  element("study-label").hidden = view !== "study"
  for (const picker of ["run", "preset", "study"]) element(`pick-${picker}`).value = now[picker]
  put(element("about"), view === "study" ? "" : facts.runs[now.run].said)
  tell(now.wrong.join(" "))
  try {
    const draw = await SHOW[view](now)
    if (mine !== shows) return  // something else has been chosen by now
    draw?.()
    section.inert = false
  } catch (error) {
    tell(location.protocol === "file:" ? facts.words.FROM_A_FILE : `${facts.words.LATE} ${error.message}`)
  }
}

// --- what is pressed ---

for (const picker of ["run", "preset", "study"]) {
  element(`pick-${picker}`).onchange = ({ target }) => {
    const cleared = picker === "preset" ? Object.fromEntries(Object.values(facts.presets).map(({ bound }) => [bound, undefined])) : {}
    go({ ...cleared, [picker]: target.value })
  }
}
element("system").onchange = ({ target }) => {
  note({ system: target.value })
  element("use").shown()
}
element("use").ontoggle = () => element("use").shown?.()
element("copy").onclick = async () => {
  await navigator.clipboard.writeText(element("exported").textContent)
  put(element("copied"), "Copied")
}
window.addEventListener("hashchange", show)
window.addEventListener("dragover", (event) => event.preventDefault())
window.addEventListener("drop", (event) => {
  event.preventDefault()
  if (event.dataTransfer.files.length && !element("dropped").open) element("dropped").showModal()
})

const loadPlotly = async () => {
  const text = new TextDecoder().decode(await bytesOf(unpackedBytes(window.packedPlotly)))
  document.head.append(Object.assign(make("script"), { textContent: text }))
}

show()
loadPlotly()
