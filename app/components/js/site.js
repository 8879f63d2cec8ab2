// The static site. The fragment of the address has the selection, and everything that is shown is read from files next to
// the page. The first story is in the page itself.

import { isTwoSided, labPart } from "./lab_part.js"
import { livePart, restAt } from "./live_part_view.js"
import { make, put } from "./dom.js"
import { nearest, readWhole, stripAt, wholeRows } from "./site_files.js"
import { bytesOf, placeOf, strips } from "./strips.js"

const element = (id) => document.getElementById(id)
const facts = JSON.parse(element("facts").textContent)
const VIEWS = ["start", "yours", "bench", "mismatch", "gradient", "kl", "study", "lab"]
const ONLY_APP = ["tokens", "training", "compare", "learn"]  // views of the app, which its links and the lessons' name
const unpackedBytes = (text) => Uint8Array.from(atob(text), (c) => c.charCodeAt(0))
let renewals = 0  // a part that is shown again gets a new number, so its thumb takes the value of the address

// --- sentences ---

const ONE_AT_A_TIME = "While you drag one threshold, the others have the preset's numbers: the site has a file for each " +
  "threshold, not for every combination. In the app they all move independently."
const ONLY_MISMATCH = "Of this run the site has only the Mismatch view, so that it does not become too large. Choose " +
  "another run, or open this one in the app."
const NO_SKETCH = "No gradients were recorded for this run. Choose another."
const NO_CURVE = "There is no curve over the threshold. Either it changes no token of this step, or the preset has no " +
  "gradient per token, or no threshold."
const FROM_A_FILE = "Only the Start page works, because this page was opened as a file, and the browser lets such a page " +
  "read no other files. Serve its folder, for example with python3 -m http.server, and open http://localhost:8000."

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

const notHere = (name, shown) => `The address names ${name}, which this page does not have. Showing ${shown}.`

// Return the selection, and sentences about what the address names and this page does not have.
const chosen = () => {
  const state = given(), wrong = []
  if (state.view === "training" && state.part === "Study") state.view = "study"
  const one = (key, options, usual) => {
    if (options.includes(state[key])) return state[key]
    if (state[key] !== undefined) {
      wrong.push(notHere(`${key}=${state[key]}`, usual))
    }
    return usual
  }
  const named = one("view", [...VIEWS, ...ONLY_APP], "start"), usualRun = named === "gradient" ? facts.sketched : facts.run
  const isOnBatch = ["bench", "gradient"].includes(named)  // with a configuration
  const isChanged = isOnBatch && facts.choices.some((key) => key in state)
  const names = Object.keys(facts.presets), run = one("run", Object.keys(facts.runs), usualRun)
  const lacks = isOnBatch && !facts.runs[run].corrected  // the site has only the Mismatch view of this run
  const isOfApp = ONLY_APP.includes(named) || isChanged
  const view = isOfApp || lacks ? "app" : named
  if (lacks) wrong.push(ONLY_MISMATCH)
  const step = facts.runs[run][view === "gradient" ? "sketch" : "step"]
  const hasStep = !["start", "yours", "app", "study", "kl"].includes(view)
  if (hasStep && ![undefined, "latest", String(step)].includes(state.step)) {
    wrong.push(`The address names step ${state.step}. This site has only the last recorded step of this run, step ${step}.`)
  }
  return {
    view, named, run, lacks, wrong, values: state,
    preset: one("preset", names, facts.preset), fix: one("fix", Object.keys(facts.first.packed), "nothing"), loss: one("kl_loss", facts.losses, facts.loss),
    study: one("study", facts.studies, facts.studies[0]), system: one("system", facts.systems, facts.systems[0]),
  }
}

const inApp = ({ named, values: { view, ...query } }) => {
  const asked = new URLSearchParams(query).toString()
  return `http://localhost:8501/${named}${asked && "?"}${asked}`
}

// --- what is shown ---

// Show a live part whose sliders each have a strip, at the address of `addresses`. In a strip the other bounds have the
// preset's values, so a slider that is moved sends the others back. `moved` gets the key of the slider and its position
// when it is let go. Return sentences about values of the address that are not shown.
const showStrips = (root, part, addresses, moved = () => {}) => {
  const sliderOf = Object.fromEntries(part.sliders.map((slider) => [slider.key, slider]))
  const keys = Object.keys(sliderOf), generations = {}, rows = wholeRows(part, strips.get(addresses[part.sliders[0]?.key]))
  const nothing = Object.fromEntries(keys.map((key) => [key, undefined]))
  let active = keys[0]
  const dataOf = (key, value, held = null) => {
    const sliders = part.sliders.map((slider) => {
      if (slider.key !== held) generations[slider.key] = ++renewals
      const shown = slider.key === key ? value : slider.value
      return { ...slider, value: shown, generation: generations[slider.key], strip: addresses[slider.key] }
    })
    return { ...part, sliders, rows }
  }
  const rest = (key, place) => {
    restAt(root, placeOf(strips.get(addresses[key]), place))
    moved(key, place)
  }
  const showAt = (key, place, said = "") => {
    const { values, value: usual } = sliderOf[key]
    active = key
    livePart(root, dataOf(key, values[place]), events)
    put(root.livePart.sliderOf.get(key).wrong, said)
    if (values[place] === usual) moved(key, place)
    else rest(key, place)
  }
  const events = {
    started: (key) => {
      if (key === active) return
      active = key
      livePart(root, dataOf(key, sliderOf[key].value, key), events)
    },
    moved: (key, { value }) => {
      const { values, value: usual } = sliderOf[key], place = nearest(values, value), shown = values[place]
      note({ ...nothing, [key]: shown === usual ? undefined : shown })
      if (shown !== value) showAt(key, place, notStored(value, shown))
      else if (key !== active) showAt(key, place)
      else rest(key, place)
    },
    reset: () => {
      note(nothing)
      showAt(keys[0], sliderOf[keys[0]].values.indexOf(sliderOf[keys[0]].value))
    },
  }
  if (!keys.length) {
    livePart(root, part, events)
    moved("", 0)
    return []
  }
  const asked = given(), away = keys.filter((key) => Number.isFinite(Number(asked[key] ?? NaN)))
  const [first = keys[0], ...others] = away, value = Number(asked[first] ?? sliderOf[first].value)
  const place = nearest(sliderOf[first].values, value), shown = sliderOf[first].values[place]
  showAt(first, place)
  const sentences = others.length ? [`One threshold at a time can differ from the preset's numbers here. ${others.join(", ")} is shown at the preset's number.`] : []
  return shown === value ? sentences : [...sentences, notStored(`${first}=${value}`, shown)]
}

const notStored = (value, shown) =>
  `${value} is not a value that this site has. Showing the nearest one, ${Number(shown.toPrecision(6))}.`

const showSentences = (host, sentences) => {
  host.replaceChildren(...sentences.map((sentence) => Object.assign(make("p"), { textContent: sentence })))
}

// Read a live part and the strips of its sliders. The file of the first slider has the part, too.
const readPart = async (name) => {
  const { part } = (await stripAt(`${name}.bin`)).about
  const addresses = Object.fromEntries(part.sliders.map(({ key }, i) => [key, i ? `${name}.${key}.bin` : `${name}.bin`]))
  await Promise.all(Object.values(addresses).map((address) => stripAt(address)))
  return { part, addresses }
}

// Presets that do the same to a batch share the files of the bench, but not the sentences about them.
const readBench = async (run, preset) => {
  const [{ about }, { part, addresses }] = await Promise.all(
    [stripAt(`preset/${preset}.bin`), readPart(`bench/${run}/${facts.presets[preset].bench}`)])
  for (const [key, file] of Object.entries(addresses)) {
    const { arrays, about: moves } = strips.get(file)
    addresses[key] = `${file}?${preset}`
    strips.set(addresses[key], { arrays, about: { ...moves, texts: { ...moves.texts, explained: about.explained[key] } } })
  }
  const [slider] = part.sliders, usual = slider ? slider.values.indexOf(slider.value) : 0
  const texts = { ...part.texts, explained: about.explained[slider?.key ?? ""][usual] }
  const notes = [part.notes[0], { lead: about.hurts, text: "" }], said = part.sliders.length > 1 ? ONE_AT_A_TIME : ""
  return { part: { ...part, notes, said, texts }, addresses, systems: about.systems }
}

const showExported = (systems, key, place) => {
  if (!element("use").open) return
  const lines = systems[key][element("system").value].map((line) => (Array.isArray(line) ? line[place] : line))
  put(element("exported"), lines.join("\n").trimEnd())
}

const SHOW = {
  start: async ({ fix }) => {
    const address = `first.${fix}`
    if (!strips.has(address)) strips.set(address, await readWhole(unpackedBytes(facts.first.packed[fix]), []))
    const { part } = strips.get(address).about
    return () => {
      for (const link of document.querySelectorAll("[data-fix]")) {
        link.href = addressOf({ ...given(), fix: link.dataset.fix })
        if (link.dataset.fix === fix) link.setAttribute("aria-current", "true")
        else link.removeAttribute("aria-current")
      }
      for (const gained of document.querySelectorAll("[data-gained]")) gained.hidden = gained.dataset.gained !== fix
      return showStrips(element("first"), part, { start_bound: address })
    }
  },
  yours: async () => {},
  app: async (now) => () => put(element("app-address"), inApp(now)),
  bench: async ({ run, preset, system }) => {
    const { part, addresses, systems } = await readBench(run, preset)
    element("system").value = system
    const moved = (key, place) => {
      element("use").shown = () => showExported(systems, key, place)
      element("use").shown()
    }
    return () => showStrips(element("bench"), part, addresses, moved)
  },
  gradient: async ({ run, preset }) => {
    const { gradients } = facts.runs[run], { gradient, bounds } = facts.presets[preset]
    const hasCurve = gradients.includes(gradient), hasSketch = gradients.length > 0
    const curve = hasCurve ? await readPart(`gradient/${run}/${gradient}`) : { part: null, addresses: {} }
    const ranking = hasSketch ? await readPart(`ranking/${run}`) : null
    const keys = Object.keys(curve.addresses), still = bounds.filter((key) => !keys.includes(key))
    const sentences = [
      ...(keys.length > 1 ? [ONE_AT_A_TIME] : []),
      ...still.map((key) => `No value of ${key} changes a token of this step, so it has no slider here.`),
    ]
    return () => {
      showSentences(element("gradient-said"), hasCurve ? sentences : [hasSketch ? NO_CURVE : NO_SKETCH])
      element("gradient").hidden = !hasCurve
      element("ranking").hidden = !hasSketch
      return [
        ...(hasCurve ? showStrips(element("gradient"), curve.part, curve.addresses) : []),
        ...(hasSketch ? showStrips(element("ranking"), ranking.part, ranking.addresses) : []),
      ]
    }
  },
  kl: async ({ loss }) => {
    const { part, addresses } = await readPart(`kl/${loss}`)
    return () => {
      for (const link of document.querySelectorAll("[data-loss]")) link.toggleAttribute("aria-current", link.dataset.loss === loss)
      return showStrips(element("kl"), part, addresses)
    }
  },
  lab: async ({ values }) => {
    const data = await labAt("lab.json"), { settings, wrong } = labSettings(data, values)
    return () => {
      showLab(data, settings)
      return wrong
    }
  },
  mismatch: ({ run }) => showPart("mismatch", `mismatch/${run}.bin`),
  study: ({ study }) => showPart("study", `study/${study}.bin`),
}

let labData
const labAt = (address) => labData ??= fetch(new URL(address, document.baseURI)).then((response) => response.json())

// Return the settings of the Lab that the address names, and sentences about those that it cannot have.
const labSettings = ({ settings, sliders, choices }, asked) => {
  const wrong = [], now = { ...settings }
  const isFine = (key) => {
    const slider = sliders.find((one) => one.key === key), choice = choices.find((one) => one.key === key), value = Number(asked[key])
    if (choice) return asked[key] in choice.options
    if (slider?.values.every(Number.isInteger) && !Number.isInteger(value)) return false
    if (slider) return value >= slider.values[0] && value <= slider.values.at(-1)
    return Number.isInteger(value) && value >= 0  // the seed
  }
  for (const key of Object.keys(settings).filter((key) => key in asked)) {
    if (isFine(key)) now[key] = typeof settings[key] === "number" ? Number(asked[key]) : asked[key]
    else wrong.push(notHere(`${key}=${asked[key]}`, settings[key]))
  }
  if (isTwoSided(now)) now.threshold = Math.max(now.threshold, 1)
  return { settings: now, wrong }
}

const showLab = (data, settings) => {
  const generation = ++renewals
  const sliders = data.sliders.map((slider) => {
    const value = settings[slider.key], values = [...new Set([...slider.values, value])].sort((a, b) => a - b)
    return { ...slider, value, values, generation }
  })
  labPart(element("lab"), { ...data, settings, sliders }, {
    moved: (changes) => {
      note(changes)
      showLab(data, { ...settings, ...changes })
    },
  })
}

const showPart = async (view, address) => {
  const { part, sentences, heading } = (await stripAt(address)).about
  return () => {
    if (heading) element(`${view}-heading`).innerHTML = heading
    showSentences(element(`${view}-said`), sentences)
    livePart(element(view), part, {})
    return []
  }
}

const PICKERS = ["run", "preset", "study"]
let shows = 0, dropped = ""

// What was chosen before cannot be moved while the file of the new choice is on its way.
const show = async () => {
  const now = chosen(), { view } = now, mine = ++shows
  const section = document.querySelector(`[data-shown="${view}"]`)
  section.inert = true
  for (const section of document.querySelectorAll("[data-shown]")) section.hidden = section.dataset.shown !== view
  for (const link of document.querySelectorAll("[data-view]")) {
    if (link.dataset.view === view) link.setAttribute("aria-current", "page")
    else link.removeAttribute("aria-current")
    const kept = view === "app" ? { run: now.values.run, preset: now.values.preset } : now.values
    link.href = addressOf({ ...kept, view: link.dataset.view })
  }
  const hasPreset = ["bench", "gradient"].includes(view)
  element("pickers").hidden = !(hasPreset || now.lacks || ["mismatch", "study"].includes(view))
  element("run-label").hidden = view === "study"
  element("preset-label").hidden = !hasPreset
  element("study-label").hidden = view !== "study"
  document.title = `${document.querySelector(`nav [data-view="${view}"]`)?.textContent ?? "In the app"} · rlcorr`
  for (const picker of PICKERS) element(`pick-${picker}`).value = now[picker]
  put(element("about"), ["study", "kl"].includes(view) ? "" : facts.runs[now.run].said)
  const wrong = [...(dropped ? [`This page cannot read ${dropped}. The command below opens a file in the app.`] : []), ...now.wrong]
  dropped = ""
  tell(wrong.join(" "))
  try {
    const draw = await SHOW[view](now)
    if (mine !== shows) return  // something else has been chosen by now
    tell([...wrong, ...(draw?.() ?? [])].join(" "))
    section.inert = false
  } catch (error) {
    tell(location.protocol === "file:" ? FROM_A_FILE : `This part could not be loaded. ${error.message}`)
  }
}

// --- what is pressed ---

// Another preset has other bounds, so the address forgets those of the one before.
for (const picker of PICKERS) {
  element(`pick-${picker}`).onchange = ({ target }) => {
    const keys = picker === "preset" ? Object.values(facts.presets).flatMap(({ bounds }) => bounds) : []
    go({ ...Object.fromEntries(keys.map((key) => [key, undefined])), [picker]: target.value, step: undefined })
  }
}
element("system").onchange = ({ target }) => {
  note({ system: target.value })
  element("use").shown()
}
element("use").ontoggle = () => element("use").shown?.()
for (const button of document.querySelectorAll("[data-copies]")) {
  button.onclick = async () => {
    await navigator.clipboard.writeText(element(button.dataset.copies).textContent)
    put(button, "Copied")
    setTimeout(() => put(button, "Copy"), 1500)
  }
}
window.addEventListener("hashchange", show)
window.addEventListener("dragover", (event) => event.preventDefault())
window.addEventListener("drop", (event) => {
  event.preventDefault()
  const [file] = event.dataTransfer.files
  if (!file) return
  dropped = file.name
  go({ view: "yours" })
})

const loadPlotly = async () => {
  const text = new TextDecoder().decode(await bytesOf(unpackedBytes(window.packedPlotly)))
  document.head.append(Object.assign(make("script"), { textContent: text }))
}

show()
loadPlotly()
