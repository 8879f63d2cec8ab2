// Part of the page itself: what it says when it is there and its websocket has not been for ten seconds. A server that was
// restarted knows nothing of this page, which is loaded anew then: its address says all that is shown.

const SAID = `This page has reached its server, but cannot open a websocket to it. Behind a proxy, the proxy must pass on
  websockets, and the app must know the name in the address bar: make app ARGS="--host ${location.hostname}".`
const connection = () => document.querySelector("[data-test-connection-state]")?.dataset.testConnectionState
let seconds = 0, connections = 0
new MutationObserver(async () => {
  if (connection() !== "CONNECTED" || !connections++) return
  const page = await fetch(location.href, { cache: "no-store" }).catch(() => null)
  if (page?.ok && !(await page.text()).includes(document.body.dataset.server)) location.reload()
}).observe(document, { subtree: true, attributeFilter: ["data-test-connection-state"] })
setInterval(() => {
  const said = document.getElementById("rl-no-connection")
  seconds = [undefined, "CONNECTED"].includes(connection()) ? 0 : seconds + 1
  if (!seconds) said?.remove()
  else if (seconds === 10) document.body.append(Object.assign(document.createElement("p"), {
    id: "rl-no-connection", role: "alert", textContent: SAID, style: "position: fixed; inset: auto 1rem 1rem; z-index: 9" }))
}, 1000)
