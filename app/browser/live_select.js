// Asks for what moves while the thumb of a select slider is dragged: Streamlit runs the page only once it is let go.

import { answered, draw } from "./answers.js"

export default function ({ data }) {
  let input = null, gone = false
  const value = () => data.values[Number(input.value)]
  const ask = async () => {
    input.asking = true
    const asked = value(), answer = await answered(data.address, asked).catch(() => null)
    input.asking = false
    if (gone) return
    if (value() !== asked) ask()
    else if (answer) draw(answer)
  }
  const moved = new MutationObserver(() => { if (!input.asking) ask() })
  const begin = () => {
    input = document.querySelector(`.st-key-${data.slider} input`)
    if (!input) return
    appeared.disconnect()
    moved.observe(input, { attributeFilter: ["aria-valuetext"] })
  }
  const appeared = new MutationObserver(begin) // Streamlit loads the code of its sliders late
  appeared.observe(document.body, { childList: true, subtree: true })
  begin()
  return () => {
    gone = true
    appeared.disconnect()
    moved.disconnect()
    if (input) input.asking = false
  }
}
