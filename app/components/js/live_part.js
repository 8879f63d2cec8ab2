import { livePart } from "./live_part_view.js"

// `moved` has the last value of every slider that was moved, so that no value is lost if two requests become one.
export default function ({ data, parentElement, setStateValue, setTriggerValue }) {
  return livePart(parentElement, data, {
    moved: (slider, at) => {
      parentElement.moved = { ...parentElement.moved, [slider]: at }
      setStateValue("moved", parentElement.moved)
    },
    reset: (slider) => setTriggerValue("reset", slider),
  })
}
