// Part of the page itself: show it when its first run has ended and its components are there, so that nothing jumps.
// style.css hides it until then.

const PATIENT = 10000  // ms after the first run: a component that fails must not hide the others
const isMounted = (part) => {
  const root = part.querySelector("[data-testid^=stBidiComponent]")
  return root !== null && (root.shadowRoot !== null || root.childElementCount > 1)  // the first is its style
}
let ended = null
const look = (now) => {
  if (document.querySelector(".rl-end")) ended ??= now
  const isLate = document.querySelector("[data-testid=stSkeleton]") !== null
  const isThere = ended !== null && !isLate && [...document.querySelectorAll(".stBidiComponent")].every(isMounted)
  if (isThere || (ended !== null && now - ended > PATIENT)) document.documentElement.classList.add("rl-seen")
  else requestAnimationFrame(look)
}
requestAnimationFrame(look)
