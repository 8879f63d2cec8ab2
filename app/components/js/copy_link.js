// Without a secure context (http on another machine) there is no clipboard. Then the text is selected instead.
export default function ({ data, parentElement }) {
  const [button, said, box] = ["button", "span", "input"].map((name) => parentElement.querySelector(name))
  const { href } = new URL(data.address, location.href)
  const say = (text) => {
    said.textContent = text
    clearTimeout(said.timer)
    said.timer = setTimeout(() => { said.textContent = "" }, 4000)
  }
  button.textContent = data.label
  box.setAttribute("aria-label", "Link to this view")
  box.value = href
  button.onclick = async () => {
    if (window.isSecureContext && navigator.clipboard) {
      try {
        await navigator.clipboard.writeText(box.value)
        return say("Copied")
      } catch (error) {
        if (error.name !== "NotAllowedError") throw error
      }
    }
    box.hidden = false
    box.focus()
    box.select()
    say(document.execCommand("copy") ? "Copied" : "Press Ctrl+C to copy")
  }
}
