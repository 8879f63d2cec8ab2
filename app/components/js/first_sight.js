// Part of the page itself: show it when what is there fills the window, or its first run has ended, and its components are
// there, so that nothing jumps. style.css hides it until then.

const PATIENT = 600  // frames, of which a slow computer has few: a component that fails must not hide the others
const isMounted = (part) => {
  const root = part.querySelector("[data-testid^=stBidiComponent]")
  return root !== null && (root.shadowRoot !== null || root.querySelector("[class^=rl-]") !== null)
}
let frames = 0  // since it was filled
const look = () => {
  const main = document.querySelector(".stMainBlockContainer > *"), end = ".rl-end, [data-testid=stException]"
  if (frames > 0 || document.querySelector(end) || main?.scrollHeight > innerHeight) frames++
  const isLate = document.querySelector("[data-testid=stSkeleton]") !== null
  const isThere = frames > 0 && !isLate && [...document.querySelectorAll(".stBidiComponent")].every(isMounted)
  if (isThere || frames > PATIENT) document.documentElement.classList.add("rl-seen")
  else requestAnimationFrame(look)
}
requestAnimationFrame(look)
