// Answers as running text, whose tokens turn grey where the cells of a strip call them rejected. The host has the methods of
// a host of a picture: `rest` and `move` take the cells of a slider position.

import { make } from "./dom.js"

const REJECTED = 4  // index into rlcorr.figures.correction.FATES

const colour = (host, fateOf) => {
  for (const [row, answer] of host.tokens.entries()) {
    for (const [column, token] of answer.entries()) token.classList.toggle("rl-rejected", fateOf(row, column) === REJECTED)
  }
}

const newWords = (host, words) => {
  host.tokens = words.map((texts) => texts.map((text) => Object.assign(make("span", "rl-word"), { textContent: text })))
  const answers = host.tokens.map((tokens) => make("span", "rl-said-answer", ...tokens))
  host.replaceChildren(make("div", "rl-words", ...answers))
  host.move = ({ cells }) => colour(host, (row, column) => cells.codes[row * cells.width + column])
  host.rest = host.move
  host.pullable = () => {}
}

export const showWords = (host, { words, fates }) => {
  const written = JSON.stringify(words)
  if (host.written !== written) newWords(host, words)
  host.written = written
  colour(host, (row, column) => fates[row][column])
}
