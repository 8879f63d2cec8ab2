// The live part of a page: sliders, and the numbers, pictures and texts that move with them. It owns its elements.
//
// It is redrawn after every run of the page, unless a thumb is held at a position that the run did not know.

import { arrange, byKey, make, put, putHtml, unbroken } from "./dom.js"
import { purge, showHeaded, showPicture } from "./pictures.js"
import { makeSlider } from "./slider.js"
import { movingLine } from "./strips.js"

const makeNumber = () => {
  const name = make("abbr"), text = make("b"), beside = make("small")
  name.tabIndex = 0
  return Object.assign(make("div", "rl-number", make("div", "rl-name", name), text, beside), { name, text, beside })
}

const makeNote = () => {
  const lead = make("span"), text = make("span")
  return Object.assign(make("div", "rl-note", lead, " ", text), { lead, text })
}

const newPart = (root) => {
  const part = {
    sliders: make("div", "rl-sliders"), resets: make("div", "rl-resets"), numbers: make("div", "rl-numbers"),
    controls: make("div", "rl-controls"), first: make("div", "rl-rows"), rows: make("div", "rl-rows"),
    refused: make("p", "rl-refused"), notes: make("div", "rl-notes"), answer: make("p", "rl-answer"), said: make("p", "rl-said"),
    sliderOf: new Map(), resetOf: new Map(), numberOf: new Map(), pictureOf: new Map(), noteOf: new Map(),
  }
  part.controls.append(part.sliders, part.resets)
  const held = make("div", "rl-held", part.controls, part.numbers)  // stays in sight while one scrolls
  root.append(make("div", "rl-live", part.answer, part.first, held, part.said, part.rows, part.refused, part.notes))
  return part
}

const write = (part, { numbers, texts, tables }) => {
  if (texts.answer !== undefined) put(part.answer, unbroken(texts.answer))
  for (const [label, { text, beside }] of Object.entries(numbers)) {
    const number = part.numberOf.get(label)
    if (!number) continue
    put(number.text, text)
    if (beside !== null) put(number.beside, beside)
  }
  for (const shown of [...part.sliderOf.values(), ...part.noteOf.values()]) {
    if (texts[shown.of] !== undefined) put(shown.text, texts[shown.of])
    if (tables[shown.of] !== undefined) putHtml(shown.text, tables[shown.of])
  }
}

const showResets = (part, resets, tell) => {
  const buttons = byKey(part.resetOf, Object.keys(resets), () => Object.assign(make("button"), { type: "button" }))
  for (const [i, [key, label]] of Object.entries(resets).entries()) {
    put(buttons[i], key ? "↺ Reset B" : "↺ Reset")
    Object.assign(buttons[i], { ariaLabel: label, title: label })
    buttons[i].onclick = () => tell.reset(key)
  }
  arrange(part.resets, buttons)
}

const showNumbers = (part, numbers) => {
  const shown = byKey(part.numberOf, numbers.map(({ label }) => label), makeNumber)
  for (const [i, { label, text, beside, help }] of numbers.entries()) {
    put(shown[i].name, label)
    shown[i].name.title = help
    put(shown[i].text, text)
    put(shown[i].beside, beside ?? "")
    shown[i].dataset.number = label
  }
  arrange(part.numbers, shown)
}

// Return [slider, line] of each slider that moves a line in this picture.
const linesOf = (part, key) => [...part.sliderOf.values()]
  .map((slider) => [slider, slider.strip() && movingLine(slider.strip(), key)])
  .filter(([, line]) => line)

// --- all parts ---

const showPictures = (part, rows) => {
  const place = () => {
    for (const [parent, of] of [[part.first, rows.slice(0, 1)], [part.rows, rows.slice(1)]]) {
      arrange(parent, of.map((row, i) => {
        const line = parent.children[i] ?? make("div", "rl-row")
        arrange(line, row.map(({ key }) => part.pictureOf.get(key)))
        return line
      }))
    }
  }
  showHeaded(part.pictureOf, rows.flat(), place, (shown, picture) => {
    shown.above ??= shown.insertBefore(make("p", "rl-above"), shown.heading)
    putHtml(shown.above, picture.above)
    showPicture(shown.host, picture)
    shown.host.pullable(() => linesOf(part, picture.key))
  })
}

const showNotes = (part, notes) => {
  const shown = byKey(part.noteOf, [...notes.keys()], makeNote)
  for (const [i, { lead, text }] of notes.entries()) {
    putHtml(shown[i].lead, lead)
    shown[i].of = text
  }
  arrange(part.notes, shown)
}

const showAll = (part, data) => {
  showNumbers(part, data.numbers)
  showNotes(part, data.notes)
  put(part.refused, data.refused)
  put(part.answer, "")
  putHtml(part.said, data.said)
  const numbers = Object.fromEntries(data.numbers.map(({ label, text, beside }) => [label, { text, beside }]))
  write(part, { ...data, numbers })
  showPictures(part, data.rows)
}

// Draw another slider position.
const drawPlace = (part, at) => {
  write(part, at)
  for (const [key, moved] of Object.entries(at.pictures)) {
    const host = part.pictureOf.get(key)?.host
    if (moved.figure) host?.redraw(moved.figure)
    else if (host) host.move(moved)
    else window.dispatchEvent(new CustomEvent("rlcorr-moved", { detail: { key, moved } }))  // a picture of another component
  }
}

// Draw a slider position as a run of the page would, for a page without a server.
export const restAt = (root, at) => {
  write(root.livePart, at)
  for (const [key, moved] of Object.entries(at.pictures)) root.livePart.pictureOf.get(key)?.host.rest(moved)
}

// Load the strip of the first slider first, because the others are moved more rarely.
const loadInTurn = async (sliders) => {
  for (const slider of sliders) await slider.load()
}

export const livePart = (root, data, tell) => {
  root.livePart ??= newPart(root)
  const part = root.livePart
  const sliders = byKey(part.sliderOf, data.sliders.map(({ key }) => key), () => makeSlider((at) => drawPlace(part, at)))
  for (const [i, slider] of sliders.entries()) slider.show(data.sliders[i], tell)
  arrange(part.sliders, sliders)
  // Leave room for the buttons where they can appear, so that nothing moves when they do.
  const hasRoom = data.sliders.some(({ exact }) => exact) || Object.keys(data.resets).length > 0
  part.controls.classList.toggle("rl-resettable", hasRoom)
  showResets(part, data.resets, tell)
  if (!sliders.some(({ isAhead }) => isAhead())) showAll(part, data)
  for (const slider of sliders) slider.overtake()
  loadInTurn(sliders)
  return () => setTimeout(() => {
    if (root.isConnected) return
    for (const { host } of part.pictureOf.values()) purge(host)
  })
}
