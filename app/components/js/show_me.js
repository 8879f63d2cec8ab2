// Bring an element into view when the button is pressed, and hide the button while the element is visible. Nothing
// scrolls by itself.

const BAR = 60  // px of Streamlit's bar at the top
const EVERY = 250  // ms

export default function ({ data, parentElement }) {
  const button = parentElement.querySelector("button")
  const visible = new IntersectionObserver(
    (entries) => { button.hidden = entries.at(-1).isIntersecting }, { rootMargin: `-${BAR}px 0px 0px` },
  )
  const target = () => document.querySelector(data.selector)
  let watched = null
  const watch = () => {  // a run of the page may draw the element later, or anew
    if (watched?.isConnected) return
    visible.disconnect()
    watched = target()
    if (watched) visible.observe(watched)
  }
  button.textContent = data.label
  button.onclick = () => target()?.scrollIntoView({ block: "center" })
  watch()
  const timer = setInterval(watch, EVERY)
  return () => {
    clearInterval(timer)
    visible.disconnect()
  }
}
