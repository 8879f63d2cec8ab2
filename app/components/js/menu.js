// On a phone the menu covers the page. Close it once a page is chosen.

const NARROW = "(max-width: 768px)"

const chosen = (event) => {
  if (!event.target.closest('[data-testid="stSidebarNavLink"]') || !matchMedia(NARROW).matches) return
  document.querySelector('[data-testid="stSidebarCollapseButton"] button')?.click()
}

export default function () {
  document.addEventListener("click", chosen)
  return () => document.removeEventListener("click", chosen)
}
