// Part of the page itself: show it when what is there fills the window, or its first run has ended, and its components are
// there, so that nothing jumps. style.css hides it until then.

const PATIENT = 10000  // ms: a component that fails must not hide the others
const isMounted = (part) => {
  const root = part.querySelector("[data-testid^=stBidiComponent]")
  return root !== null && (root.shadowRoot !== null || root.querySelector("[class^=rl-]") !== null)
}
let filled = null
const look = (now) => {
  const main = document.querySelector(".stMainBlockContainer > *")
  if (document.querySelector(".rl-end, [data-testid=stException]") || main?.scrollHeight > innerHeight) filled ??= now
  const isLate = document.querySelector("[data-testid=stSkeleton]") !== null
  const isThere = filled !== null && !isLate && [...document.querySelectorAll(".stBidiComponent")].every(isMounted)
  if (isThere || (filled !== null && now - filled > PATIENT)) document.documentElement.classList.add("rl-seen")
  else requestAnimationFrame(look)
}
requestAnimationFrame(look)
