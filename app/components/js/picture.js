import { purge, showPicture } from "./pictures.js"

export default function ({ data, parentElement, setTriggerValue }) {
  showPicture(parentElement, data, data.clicks ? (place) => setTriggerValue("click", place) : null)
  return () => setTimeout(() => { if (!parentElement.isConnected) purge(parentElement) })
}
