// The address is read when the button is pressed, because moving a bound changes it without running this function.
// Without a secure context (http on another machine) there is no clipboard. Then the text is selected instead.
export default function ({ data, parentElement }) {
  const [button, said, box] = ["button", "span", "input"].map((name) => parentElement.querySelector(name))
  const address = () => {
    const there = data.path === null ? new URL(location.href) : new URL(data.path || ".", location.href)
    for (const [key, value] of Object.entries(data.query)) there.searchParams.set(key, value)
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
