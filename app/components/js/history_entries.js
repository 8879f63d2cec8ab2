// A link of the navigation opens a view without a query. The page then completes the address, and Streamlit would make a
// second entry in the browser's history for it, so that Back needs two presses. Let the complete address replace the
// incomplete one.

const push = history.pushState.bind(history)
let incomplete = false

const pushState = (state, title, url) => {
  const next = new URL(url, location.href)
  if (next.pathname !== location.pathname) {
    incomplete = !next.searchParams.has("run")
    push(state, title, url)
  } else if (incomplete) {
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
