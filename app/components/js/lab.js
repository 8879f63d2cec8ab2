import { labPart } from "./lab_part.js"

export default function ({ data, parentElement, setStateValue }) {
  return labPart(parentElement, data, {
    moved: (changes) => {
      const at = Object.fromEntries(Object.entries(changes).map(([key, value]) => [key, { value, generation: data.generations[key] }]))
      parentElement.moved = { ...parentElement.moved, ...at }
      setStateValue("moved", parentElement.moved)
    },
  })
}
