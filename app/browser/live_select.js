// Asks for what moves while the thumb of a select slider is dragged: Streamlit runs the page only once it is let go.

import { answered, draw } from "./answers.js"

export default function ({ data }) {
  const input = document.querySelector(`.st-key-${data.slider} input`)
  const value = () => data.values[Number(input.value)]
  let gone = false
  const ask = async () => {
    input.asking = true
    const asked = value(), answer = await answered(data.address, asked).catch(() => null)
    input.asking = false
    if (gone) return
    if (value() !== asked) ask()
    else if (answer) draw(answer)
  }
  const observer = new MutationObserver(() => { if (!input.asking) ask() })
  observer.observe(input, { attributeFilter: ["aria-valuetext"] })
  return () => {
    gone = true
    input.asking = false
    observer.disconnect()
  }
}
