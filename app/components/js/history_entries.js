// Streamlit makes an entry in the browser's history for each change of the address. Three changes replace an entry
// instead, so that Back needs one press:
// - A link of the navigation names no run, and the page then completes the address.
// - During a step of a tour everything that a person tries changes the address: one step is one entry.
// - After a click on a link to another page, Streamlit may write the new page's query before the new path, if both come
//   at once. The path then replaces this entry, which names nothing that anybody has seen.

const push = history.pushState.bind(history)
let incomplete = false, leaving = false, lacksPath = false

const isSameStep = (next) => {
  const now = new URL(location.href), [before, after] = [now, next].map(({ searchParams }) => searchParams)
  return after.has("tour") && ["tour", "tour_step"].every((key) => before.get(key) === after.get(key))
}

const pushState = (state, title, url) => {
  const next = new URL(url, location.href)
  if (next.pathname !== location.pathname) {
    incomplete = !next.searchParams.has("run")
    if (lacksPath) history.replaceState(state, title, url)
    else push(state, title, url)
    leaving = lacksPath = false
  } else if (leaving) {
    lacksPath = true
    push(state, title, url)
  } else if (incomplete || isSameStep(next)) {
    incomplete = false
    history.replaceState(state, title, url)
  } else {
    push(state, title, url)
  }
}

const moved = () => {
  incomplete = leaving = lacksPath = false
}

const clicked = ({ target, button, ctrlKey, metaKey, shiftKey, altKey }) => {
  const link = target.closest?.("a[href]"), opensElsewhere = button || ctrlKey || metaKey || shiftKey || altKey
  if (!link || opensElsewhere || link.target === "_blank" || link.origin !== location.origin) return
  leaving = link.pathname !== location.pathname
}

export default function () {
  if (Object.hasOwn(history, "pushState")) return
  history.pushState = pushState
  addEventListener("popstate", moved)
  addEventListener("click", clicked, true)
}
