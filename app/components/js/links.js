// Links to other views of the page. Only a plain click is ours; the browser has all others.

import { arrange, make, put } from "./dom.js"

const isPlain = ({ button, ctrlKey, metaKey, shiftKey, altKey }) => !(button || ctrlKey || metaKey || shiftKey || altKey)

export default function ({ data, parentElement, setTriggerValue }) {
  parentElement.row ??= parentElement.appendChild(make("div", "rl-links"))
  const { row } = parentElement
  arrange(row, data.map((_, i) => row.children[i] ?? make("a", "rl-link")))
  for (const [i, { label, to, href, current }] of data.entries()) {
    const link = row.children[i]
    put(link, label)
    if (link.getAttribute("href") !== href) link.href = href
    if (current) link.ariaCurrent = "page"
    else link.removeAttribute("aria-current")
    link.onclick = (event) => {
      if (!to || !isPlain(event)) return
      event.preventDefault()
      setTriggerValue("go", to)
    }
  }
}
