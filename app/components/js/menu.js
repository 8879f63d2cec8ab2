// On a phone a button without a word opens the menu of pages, which covers the page. Name the button, and close the menu
// once a page is chosen. The style sheet shows the name.

const NARROW = "(max-width: 768px)"

const chosen = (event) => {
  if (!event.target.closest('[data-testid="stSidebarNavLink"]') || !matchMedia(NARROW).matches) return
  document.querySelector('[data-testid="stSidebarCollapseButton"] button')?.click()
}

const name = () => {
  const button = document.querySelector('[data-testid="stExpandSidebarButton"]')
  if (button) button.ariaLabel = "Menu"
}

export default function () {
  const names = new MutationObserver(name), header = document.querySelector('[data-testid="stHeader"]')
  name()
  if (header) names.observe(header, { childList: true, subtree: true })  // Streamlit makes the button anew
  document.addEventListener("click", chosen)
  return () => {
    names.disconnect()
    document.removeEventListener("click", chosen)
  }
}
