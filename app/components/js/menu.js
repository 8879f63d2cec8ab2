// On a phone the menu lies over the page: once a page has been chosen it closes.

const NARROW = "(max-width: 768px)"

const chosen = (event) => {
  if (!event.target.closest('[data-testid="stSidebarNavLink"]') || !matchMedia(NARROW).matches) return
  document.querySelector('[data-testid="stSidebarCollapseButton"] button')?.click()
}

export default function () {
  document.addEventListener("click", chosen)
  return () => document.removeEventListener("click", chosen)
}
