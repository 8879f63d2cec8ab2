// A part of the page that asks its address every two seconds, and draws the answer. It is quiet while nobody sees it, when
// nothing changes any more, and when the server does not know the address: the next run of the page brings another one.

import { arrange, byKey, make, put, putHtml } from "./dom.js"
import { purge, showHeaded, showPicture } from "./pictures.js"

const EVERY = 2000  // ms

const newWatchedPart = (root) => {
  const part = { html: make("div"), buttons: make("div", "rl-buttons"), pictures: make("div", "rl-row"), below: make("div") }
  Object.assign(part, { buttonOf: new Map(), pictureOf: new Map() })
  root.append(make("div", "rl-watched", part.html, part.buttons, part.pictures, part.below))
  return part
}

const show = (part, { html, buttons, pictures, below }, press) => {
  putHtml(part.html, html)
  putHtml(part.below, below)
  const keys = Object.keys(buttons)
  const shown = byKey(part.buttonOf, keys, () => Object.assign(make("button"), { type: "button" }))
  for (const [i, key] of keys.entries()) {
    put(shown[i], buttons[key])
    shown[i].dataset.press = key
    shown[i].onclick = () => press(key)
  }
  arrange(part.buttons, shown)
  const place = (now) => arrange(part.pictures, now)
  showHeaded(part.pictureOf, pictures, place, ({ host }, picture) => showPicture(host, picture))
}

export default function ({ data, parentElement, setTriggerValue }) {
  const { address, content } = data
  parentElement.watched ??= newWatchedPart(parentElement)
  const part = parentElement.watched, press = (key) => setTriggerValue("pressed", key)
  show(part, content, press)
  clearInterval(parentElement.timer)
  let asking = false
  const ask = async () => {
    if (asking || document.hidden) return
    asking = true
    const response = await fetch(new URL(address, document.baseURI)).catch(() => null)
    if (parentElement.timer !== timer) return  // a run of the page has drawn something newer
    asking = false
    const isAnswer = response?.ok && response.headers.get("content-type").startsWith("application/json")
    const answer = isAnswer ? await response.json() : null
    if (parentElement.timer !== timer) return
    if (answer) show(part, answer, press)
    if (response?.status === 404 || answer?.ends) clearInterval(timer)
  }
  const timer = address && !content.ends ? setInterval(ask, EVERY) : null
  parentElement.timer = timer
  return () => setTimeout(() => {
    if (parentElement.isConnected) return
    clearInterval(parentElement.timer)
    for (const { host } of part.pictureOf.values()) purge(host)
  })
}
