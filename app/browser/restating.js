import { write } from "./writing.js"

export default function ({ data }) {
  write(data)
  for (const key of data.pictures) document.querySelector(`.st-key-${key} .rl-picture`)?.restate()
  window.dispatchEvent(new Event("rlcorr-run"))  // a threshold that is held asks again
}
