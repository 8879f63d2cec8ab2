// What moves while something is dragged: asked of the server, and drawn.

import { write } from "./writing.js"

export const draw = (answer) => {
  write(answer)
  for (const [key, figure] of Object.entries(answer.figures)) {
    document.querySelector(`.st-key-${key} .rl-picture`)?.redraw(figure)
  }
}

// Nothing where the address no longer answers, as after a restart of the server.
export const answered = async (address, value) => {
  const response = await fetch(new URL(`${address}?at=${value}`, document.baseURI))
  const isAnswer = response.ok && response.headers.get("content-type").startsWith("application/json")
  return isAnswer ? response.json() : null
}
