"""A button that copies a link to what is shown, and says so."""

from collections.abc import Mapping

from streamlit.components.v2 import component

HTML = """<button type="button"></button><span role="status"></span><input readonly hidden>"""

CSS = """
:host, div { font-family: var(--st-font) }
button { font: 0.875rem var(--st-font); padding: 0.3rem 0.75rem; cursor: pointer; white-space: nowrap;
  color: var(--st-text-color); background: var(--st-background-color); border: 1px solid var(--st-border-color);
  border-radius: 6px }
button:hover, button:focus-visible { border-color: var(--st-primary-color); color: var(--st-primary-color) }
button:focus-visible { outline: 2px solid var(--st-primary-color); outline-offset: 2px }
span { font-size: 0.8rem; color: var(--st-text-color); margin-left: 0.5rem }
input { display: block; box-sizing: border-box; width: 100%; margin-top: 0.4rem; padding: 0.3rem 0.5rem;
  font: 0.8rem var(--st-code-font, monospace); color: var(--st-text-color);
  background: var(--st-secondary-background-color); border: 1px solid var(--st-border-color); border-radius: 6px }
input[hidden] { display: none }
"""

# The address is read when the button is pressed: moving a threshold changes it without running this function. Without
# a secure context (http on another machine) there is no clipboard, and the text is selected instead.
JS = """
export default function ({ data, parentElement }) {
  const [button, said, box] = ["button", "span", "input"].map((name) => parentElement.querySelector(name))
  const address = () => {
    const there = data.path === null ? new URL(location.href) : new URL(data.path || ".", location.href)
    for (const [key, value] of Object.entries(data.query)) {
      if (!there.searchParams.has(key)) there.searchParams.set(key, value)
    }
    return there.href
  }
  const say = (text) => {
    said.textContent = text
    clearTimeout(said.timer)
    said.timer = setTimeout(() => { said.textContent = "" }, 4000)
  }
  button.textContent = data.label
  box.setAttribute("aria-label", data.words.link)
  if (data.path !== null) { box.value = address(); box.hidden = false }
  button.onclick = async () => {
    box.value = address()
    if (window.isSecureContext && navigator.clipboard) {
      try {
        await navigator.clipboard.writeText(box.value)
        return say(data.words.copied)
      } catch (error) {
        if (error.name !== "NotAllowedError") throw error
      }
    }
    box.hidden = false
    box.focus()
    box.select()
    say(document.execCommand("copy") ? data.words.copied : data.words.press)
  }
}
"""

_mount = component("rlcorr_copy_link", html=HTML, css=CSS, js=JS)


def copy_link(
    label: str, query: Mapping[str, str], *, words: Mapping[str, str], key: str, path: str | None = None
) -> None:
    """A button for the address of this page, completed with what of `query` it does not have; or of another page, whose
    address is shown as well. `words` has link, copied and press."""
    _mount(data={"label": label, "query": dict(query), "words": dict(words), "path": path}, key=key)
