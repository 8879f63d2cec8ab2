// Streamlit makes an entry in the browser's history for each change of the address. Two changes replace the entry
// instead, so that Back needs one press:
// - The first address, and a link of the navigation, may name no run, and the page then completes the address.
// - During a step of a tour everything that a person tries changes the address: one step is one entry.

const push = history.pushState.bind(history)
let incomplete = !new URL(location.href).searchParams.has("run")

const isSameStep = (next) => {
  const now = new URL(location.href), [before, after] = [now, next].map(({ searchParams }) => searchParams)
  return after.has("tour") && ["tour", "tour_step"].every((key) => before.get(key) === after.get(key))
}

const pushState = (state, title, url) => {
  const next = new URL(url, location.href)
  if (next.pathname !== location.pathname) {
    incomplete = !next.searchParams.has("run")
    push(state, title, url)
  } else if (incomplete || isSameStep(next)) {
    incomplete = false
    history.replaceState(state, title, url)
  } else {
    push(state, title, url)
  }
}

const moved = () => {
  incomplete = false
}

export default function () {
  if (Object.hasOwn(history, "pushState")) return
  history.pushState = pushState
  addEventListener("popstate", moved)
}
