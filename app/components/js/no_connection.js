// Part of the page itself: what it says when it is there and its websocket has not been for ten seconds.

const SAID = `This page has reached its server, but cannot open a websocket to it. Behind a proxy, the proxy must pass on
  websockets, and the app must know the name in the address bar: make app ARGS="--host ${location.hostname}".`
let seconds = 0
setInterval(() => {
  const app = document.querySelector("[data-test-connection-state]"), said = document.getElementById("rl-no-connection")
  seconds = app && app.dataset.testConnectionState !== "CONNECTED" ? seconds + 1 : 0
  if (!seconds) said?.remove()
  else if (seconds === 10) document.body.append(Object.assign(document.createElement("p"), {
    id: "rl-no-connection", role: "alert", textContent: SAID, style: "position: fixed; inset: auto 1rem 1rem; z-index: 9" }))
}, 1000)
