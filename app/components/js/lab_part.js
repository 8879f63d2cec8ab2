// The page Lab: settings, and the curves of the training runs that they lead to, which Web Workers train here.

import { arrange, make, put } from "./dom.js"
import { makePool } from "./lab_pool.js"
import { purge, showPicture } from "./pictures.js"
import { makeSlider } from "./slider.js"

const SEEDS = 8, MAP_SEEDS = 4, LAST = 10
const STUDENT = [NaN, NaN, 12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365]  // quantile 0.975 by number of seeds
const A_FRAME = 2  // updates that are drawn per redraw while it plays
const PARTS_AFTER = 20  // updates after which the smaller pictures follow

const mean = (numbers) => numbers.reduce((sum, x) => sum + x, 0) / numbers.length
// Return the mean over seeds, and half the width of its interval.
const estimate = (numbers) => {
  const middle = mean(numbers), n = numbers.length
  const variance = numbers.reduce((sum, x) => sum + (x - middle) ** 2, 0) / (n - 1)
  return { mean: middle, half: n < 2 ? 0 : STUDENT[n] * Math.sqrt(variance / n) }
}
const ending = (curves) => mean([...curves.reward.slice(-LAST)])
const signed = (x) => `${x < 0 ? "−" : "+"}${Math.abs(x).toFixed(2)}`

// --- what was trained: curves by the settings of a run ---

const keyOf = ([experiment, threshold, seed]) => JSON.stringify([experiment, threshold, seed])
const withoutThreshold = ({ threshold, ...rest }) => rest
// What a handle does not change while one looks for a setting: its runs are kept, so that going back shows them at once.
const lasting = ({ threshold, lag, learning_rate, ...rest }) => JSON.stringify(rest)

const jobsOf = (lab) => {
  const { settings } = lab, of = withoutThreshold(settings)
  const seeds = (count) => Array.from({ length: count }, (_, k) => settings.seed + k)
  const arm = (experiment, threshold, count) => seeds(count).map((seed) => [experiment, threshold, seed])
  const hero = seeds(SEEDS).flatMap((seed) => [[of, null, seed], [of, chosenOf(settings), seed]])
  const isNear = (a, b) => Math.abs(Math.log(a / settings.threshold)) - Math.abs(Math.log(b / settings.threshold))
  const sweep = settings.ratio === "none" ? [] : [...lab.thresholds].sort(isNear).flatMap((threshold) => arm(of, threshold, SEEDS))
  const cell = (age, rate) => [null, chosenOf(settings)].flatMap((t) => arm({ ...of, lag: age, learning_rate: rate }, t, MAP_SEEDS))
  const map = settings.ratio === "none" ? [] : lab.data.ages.flatMap((age) => lab.rates.flatMap((rate) => cell(age, rate)))
  return [...hero, ...sweep, ...map].filter((job) => !lab.trained.has(keyOf(job)))
}
const chosenOf = ({ ratio, threshold }) => (ratio === "none" ? null : threshold)

// Return the curves of an arm: one per seed that is trained.
const runsOf = (lab, experiment, threshold, count) => Array.from({ length: count }, (_, k) => lab.trained.get(
  keyOf([experiment, threshold, lab.settings.seed + k]))).filter(Boolean)

// --- pictures ---

const redrawn = (lab, key, change) => {
  const host = lab.hosts[key], figure = JSON.parse(lab.data.pictures[key].figure), { xaxis } = figure.layout
  if (xaxis.title.text === lab.data.words.update) xaxis.range = [0, lab.settings.steps]
  change(figure)
  host.redraw?.(JSON.stringify(figure))
}

// Write the mean and the interval of an arm into its two traces.
const writeArm = (traces, runs, name, until, floor = -Infinity) => {
  if (!runs.length) return
  const steps = Math.min(until, runs[0][name].length), at = Array.from({ length: steps }, (_, k) => estimate(runs.map((run) => run[name][k])))
  const x = [...at.keys()], clip = (y) => Math.max(y, floor)
  Object.assign(traces[0], {
    x: [...x, ...x.toReversed()],
    y: [...at.map((e) => clip(e.mean - e.half)), ...at.toReversed().map((e) => clip(e.mean + e.half))],
  })
  Object.assign(traces[1], { x, y: at.map((e) => clip(e.mean)) })
}

const drawHero = (lab) => {
  const of = withoutThreshold(lab.settings), arms = [null, chosenOf(lab.settings)].map((t) => runsOf(lab, of, t, SEEDS))
  redrawn(lab, "curves", ({ data }) => {
    for (const [arm, runs] of arms.entries()) writeArm(data.slice(2 * arm), runs, "reward", lab.shown)
  })
  put(lab.title, titleOf(lab, arms))
  if (arms.some((runs) => runs.length < SEEDS) || lab.playing && lab.shown % PARTS_AFTER) return  // the curves come first
  for (const name of ["ess", "clipped"]) redrawn(lab, name, ({ data }) => writeArm(data, arms[1], name, lab.shown))
  for (const name of ["mean_ratio", "k3", "kl"]) {
    redrawn(lab, name, ({ data }) => {
      for (const [arm, runs] of arms.entries()) writeArm(data.slice(2 * arm), runs, name, lab.shown, 1e-9)
      if (name === "kl" && lab.settings.penalty !== "none") writeArm(data.slice(4), arms[1], "penalty", lab.shown, 1e-9)
    })
  }
}

const drawSweep = (lab) => {
  const of = withoutThreshold(lab.settings), before = runsOf(lab, of, null, SEEDS).map(ending)
  const points = lab.thresholds.map((threshold) => [threshold, runsOf(lab, of, threshold, SEEDS).map(ending)])
    .filter(([, ends]) => ends.length > 1).map(([threshold, ends]) => ({ threshold, ...estimate(ends) }))
  redrawn(lab, "over_threshold", ({ data, layout }) => {
    const [low, high] = [lab.thresholds[0], lab.thresholds.at(-1)]
    if (before.length > 1) {
      const { mean: y, half } = estimate(before)
      Object.assign(data[0], { x: [low, high, high, low], y: [y - half, y - half, y + half, y + half] })
      Object.assign(data[1], { x: [low, high], y: [y, y] })
    }
    const x = points.map((p) => p.threshold)
    Object.assign(data[2], { x: [...x, ...x.toReversed()], y: [...points.map((p) => p.mean - p.half), ...points.toReversed().map((p) => p.mean + p.half)] })
    Object.assign(data[3], { x, y: points.map((p) => p.mean) })
    Object.assign(layout.shapes[0], { x0: lab.settings.threshold, x1: lab.settings.threshold })
  })
}

const drawMap = (lab) => redrawn(lab, "gains", ({ data: [cells], layout }) => {
  const of = withoutThreshold(lab.settings), ends = (experiment, threshold) => runsOf(lab, experiment, threshold, MAP_SEEDS).map(ending)
  cells.x = layout.xaxis.categoryarray = lab.rates.map(String)
  cells.z = lab.data.ages.map((lag) => lab.rates.map((learning_rate) => {
    const at = { ...of, lag, learning_rate }, before = ends(at, null), after = ends(at, chosenOf(lab.settings))
    return before.length === MAP_SEEDS && after.length === MAP_SEEDS ? mean(after) - mean(before) : null
  }))
  const row = lab.data.ages.indexOf(lab.settings.lag), column = lab.rates.indexOf(lab.settings.learning_rate)
  if (row >= 0 && column >= 0) {
    const box = { type: "rect", x0: column - 0.5, x1: column + 0.5, y0: row - 0.5, y1: row + 0.5, line: { color: "#3f9c7d", width: 3 } }
    layout.shapes = [box]
  }
})

// --- words ---

const filledIn = (text, values) => text.replace(/\{(\w+)\}/g, (_, name) => values[name])

const titleOf = ({ data: { words }, settings, shown }, [before, after]) => {
  if (before.length < SEEDS || after.length < SEEDS) return words.training
  if (shown < settings.steps) return filledIn(words.playing, { step: shown, steps: settings.steps })
  const ends = before.map(ending), others = after.map(ending), values = { before: mean(ends).toFixed(2), after: mean(others).toFixed(2), seeds: SEEDS }
  if (settings.ratio === "none") return filledIn(words.uncorrected, values)
  const gain = estimate(others.map((x, k) => x - ends[k]))
  const how = Math.abs(gain.mean) <= gain.half ? "same" : gain.mean > 0 ? "better" : "worse"
  const named = filledIn(words.corrections[`${settings.ratio} ${settings.bound}`], { threshold: settings.threshold })
  return filledIn(words[how], { ...values, named, gain: `${signed(gain.mean)} [${signed(gain.mean - gain.half)}, ${signed(gain.mean + gain.half)}]` })
}

// --- the page ---

const redrawSoon = (lab, ...keys) => {
  for (const key of keys) lab.stale.add(key)
  lab.frame ??= requestAnimationFrame(() => {
    lab.frame = null
    const stale = [...lab.stale]
    lab.stale.clear()
    if (!lab.root.isConnected) return
    for (const key of stale) ({ hero: drawHero, sweep: drawSweep, map: drawMap })[key](lab)
    if (lab.playing) {
      lab.shown = Math.min(lab.shown + A_FRAME, lab.settings.steps)
      if (lab.shown < lab.settings.steps) redrawSoon(lab, "hero")
      else play(lab, false)
    }
  })
}

const play = (lab, isOn) => {
  const still = matchMedia("(prefers-reduced-motion: reduce)").matches
  if (isOn && lab.shown >= lab.settings.steps) lab.shown = still ? lab.settings.steps : 0
  lab.playing = isOn && lab.shown < lab.settings.steps
  put(lab.buttons.play, lab.playing ? lab.data.words.pause : lab.data.words.play)
  redrawSoon(lab, "hero")
}

// Take other settings: train what is missing, and draw what is there.
const take = (lab, changes) => {
  const before = lasting(lab.settings ?? {})
  lab.settings = { ...lab.settings, ...changes }
  if (before !== lasting(lab.settings)) lab.trained.clear()
  lab.rates = lab.data.rates[lab.settings.optimizer]
  lab.thresholds = valuesOf(lab, "threshold")
  lab.shown = lab.settings.steps
  showSettings(lab)
  lab.pool.start(jobsOf(lab))
  redrawSoon(lab, "hero", "sweep", "map")
}

const makeChoice = (lab, { key, label, options }) => {
  const select = make("select"), row = make("label", "rl-choice", make("span", "", label), select)
  select.append(...Object.entries(options).map(([value, text]) => Object.assign(make("option", "", text), { value })))
  select.onchange = () => change(lab, { [key]: select.value })
  return Object.assign(row, { select })
}

// Change settings here, and tell the server, which writes the address.
const change = (lab, changes) => {
  const after = { ...lab.settings, ...changes }
  if (isTwoSided(after) && after.threshold < 1) changes.threshold = 1
  if (changes.optimizer && !lab.data.rates[after.optimizer].includes(after.learning_rate)) changes.learning_rate = lab.data.usual[after.optimizer]
  take(lab, changes)
  lab.tell.moved(changes)
}

const newLab = (root, data) => {
  const lab = { root, data, hosts: {}, trained: new Map(), stale: new Set(), frame: null, shown: 0, playing: false, sliders: {}, choices: {}, buttons: {} }
  const shownOf = (key) => {
    const host = make("div"), { heading, caption } = data.pictures[key]
    lab.hosts[key] = host
    return Object.assign(make("section", `rl-shown rl-lab-${key}`, make("h2", "", heading), host, make("p", "rl-caption", caption)))
  }
  const button = (key, act) => {
    lab.buttons[key] = Object.assign(make("button", "", data.words[key]), { type: "button", onclick: act })
    return lab.buttons[key]
  }
  lab.title = Object.assign(make("h1", "rl-lab-title"), { role: "status" })
  lab.trouble = Object.assign(make("p", "rl-lab-trouble"), { role: "alert" })
  lab.handles = make("div", "rl-sliders")
  lab.chosen = make("div", "rl-choices")
  const step = (to) => { lab.playing = false; lab.shown = to; play(lab, false) }
  const buttons = make("div", "rl-lab-buttons",
    button("play", () => play(lab, !lab.playing)), button("step", () => step(lab.shown >= lab.settings.steps ? 1 : lab.shown + 1)),
    button("reset", () => step(0)), button("another", () => change(lab, { seed: lab.settings.seed + SEEDS })))
  root.append(make("div", "rl-lab", lab.title, make("p", "rl-lab-toy", data.words.toy), lab.trouble,
    make("div", "rl-lab-hero", shownOf("curves"), shownOf("over_threshold")), buttons, lab.handles, lab.chosen,
    make("div", "rl-lab-parts", shownOf("ess"), shownOf("clipped"), shownOf("mean_ratio"), shownOf("k3"), shownOf("kl")), shownOf("gains")))
  lab.pool = makePool((job, curves) => {
    lab.trained.set(keyOf(job), curves)
    const [experiment, threshold] = job, { lag, learning_rate, threshold: chosen } = lab.settings
    const isHere = experiment.lag === lag && experiment.learning_rate === learning_rate
    const isWhole = (count) => runsOf(lab, experiment, threshold, count).length === count
    if (isHere && (threshold === null || threshold === chosen)) redrawSoon(lab, "hero")
    if (isHere ? isWhole(SEEDS) : isWhole(MAP_SEEDS)) redrawSoon(lab, isHere ? "sweep" : "map")
  }, (kind) => put(lab.trouble, data.words[kind]))
  return lab
}

const makeHandle = (lab, { key }) => {
  const slider = makeSlider(() => {})
  slider.input.addEventListener("input", () => {  // while it is dragged; at rest the server hears of it
    take(lab, { [key]: valuesOf(lab, key)[slider.place()] })
  })
  return slider
}

export const isTwoSided = ({ bound }) => bound === "band" || bound === "reject"

// Return the values of a handle. Between a threshold below 1 and its inverse there is nothing.
const valuesOf = ({ data, settings }, key) => {
  const { values } = data.sliders.find((given) => given.key === key)
  return key === "threshold" && isTwoSided(settings) ? values.filter((value) => value >= 1) : values
}

const showHandles = (lab, data) => {
  const { sliders, choices } = data
  const tell = { moved: (key, { value }) => change(lab, { [key]: value }) }
  arrange(lab.handles, sliders.map((given) => lab.sliders[given.key] ??= makeHandle(lab, given)))
  for (const given of sliders) lab.sliders[given.key].show({ ...given, values: valuesOf({ data, settings: data.settings }, given.key) }, tell)
  arrange(lab.chosen, choices.map((given) => lab.choices[given.key] ??= makeChoice(lab, given)))
}

// Show the settings in the lists and at the thumbs, and only the handles that do something.
const showSettings = (lab) => {
  const { settings, sliders, choices } = lab
  for (const [key, slider] of Object.entries(sliders)) if (valuesOf(lab, key)[slider.place()] !== settings[key]) slider.put(settings[key])
  for (const [key, { select }] of Object.entries(choices)) select.value = settings[key]
  sliders.penalty_coef.hidden = settings.penalty === "none"
  sliders.threshold.hidden = settings.ratio === "none"
  choices.bound.hidden = settings.ratio === "none"
}

// Show the Lab with the settings of `data`. `tell.moved` gets settings that somebody has changed: name → value.
export const labPart = (root, data, tell) => {
  root.lab ??= newLab(root, data)
  const { lab } = root
  Object.assign(lab, { data, tell })
  showHandles(lab, data)
  const go = (learning_rate, lag) => { if (lab.rates.includes(learning_rate) && data.ages.includes(lag)) change(lab, { learning_rate, lag }) }
  const clicks = { gains: ({ x, y }) => go(Number(x), Number(y)) }
  for (const [key, host] of Object.entries(lab.hosts)) showPicture(host, data.pictures[key], clicks[key])
  lab.hosts.over_threshold.pullable(() => [[lab.sliders.threshold, valuesOf(lab, "threshold")]])
  if (JSON.stringify(lab.settings) === JSON.stringify(data.settings)) redrawSoon(lab, "hero", "sweep", "map")
  else take(lab, data.settings)
  return () => setTimeout(() => {
    if (root.isConnected) return
    lab.pool.end()
    for (const host of Object.values(lab.hosts)) purge(host)
  })
}
