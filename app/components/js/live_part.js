import { livePart } from "./live_part_view.js"

export default function ({ data, parentElement, setStateValue, setTriggerValue }) {
  return livePart(parentElement, data, {
    moved: (slider, at) => setStateValue("at", { slider, ...at }),
    reset: (slider) => setTriggerValue("reset", slider),
  })
}
