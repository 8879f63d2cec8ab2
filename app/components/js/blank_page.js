// Streamlit 1.67 empties the page for good when it cannot place one element. Load the page anew then: its address has
// what it shows.

const PAUSE = 10_000  // milliseconds; a page that is empty again at once stays so, instead of being loaded for ever

const isEmpty = () => !document.getElementById("root").childElementCount

const reload = () => {
  const last = Number(sessionStorage.getItem("rlcorr_reloaded"))
  if (!isEmpty() || Date.now() - last < PAUSE) return
  sessionStorage.setItem("rlcorr_reloaded", Date.now())
  location.reload()
}

export default function () {
  if (window.rlcorrWatchesForBlankPages) return
  window.rlcorrWatchesForBlankPages = true
  new MutationObserver(reload).observe(document.getElementById("root"), { childList: true })
}
