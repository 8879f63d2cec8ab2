// What the browser draws: formulas, and the figures as they come near. Until then, and on paper, a figure is a picture.

const ROOT = document.documentElement.dataset.content_root

const dark = () => {
  const chosen = document.body.dataset.theme
  return chosen === "dark" || (chosen !== "light" && matchMedia("(prefers-color-scheme: dark)").matches)
}

const run = (given) => new Promise((resolve, reject) => {
  const script = Object.assign(document.createElement("script"), given)
  script.onload = resolve
  script.onerror = () => reject(new Error(`${given.src} could not be read`))
  document.head.append(script)
  if (!given.src) resolve()  // a text runs at once
})

const unpacked = async (text) => {
  const bytes = Uint8Array.from(atob(text), (c) => c.charCodeAt(0))
  return new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"))).text()
}

// One script for all figures of the site, asked for by the first. The file holds it packed.
let plotly
const loaded = () => {
  plotly ??= run({ src: `${ROOT}_static/plotly.js` })
    .then(() => unpacked(window.packedPlotly))
    .then((text) => run({ textContent: text }))
    .then(() => window.Plotly)
  return plotly
}

const coloured = () => ({ color: dark() ? "#cfd0d0" : "#333333" })

async function draw(figure) {
  const { data, layout } = JSON.parse(figure.querySelector("script").textContent)
  const Plotly = await loaded()
  const place = document.createElement("div")
  place.className = "moving"
  figure.append(place)
  const settings = { displaylogo: false, responsive: true, displayModeBar: false }
  await Plotly.newPlot(place, data, { ...layout, font: coloured(), autosize: true }, settings)
  figure.classList.add("drawn")
}

// An appendix is folded, unless the address points into it.
const appendix = document.getElementById("appendix")
if (appendix) {
  const folded = document.createElement("details"), summary = document.createElement("summary")
  const [heading, ...rest] = appendix.children
  summary.append(heading)
  folded.append(summary, ...rest)
  appendix.append(folded)
  const unfold = () => { folded.open ||= appendix.contains(document.getElementById(location.hash.slice(1))) }
  window.addEventListener("hashchange", unfold)
  unfold()
}

// The app shows these pages in a frame, which its browser lets nothing leave but a new tab.
if (window !== window.top) {
  for (const link of document.querySelectorAll('a[href^="http"], a[href^="../index.html"]')) link.target = "_blank"
}

if (window.katex) {
  const delimiters = [
    { left: "\\[", right: "\\]", display: true },
    { left: "\\(", right: "\\)", display: false },
    { left: "$", right: "$", display: false },
  ]
  window.renderMathInElement(document.body, { delimiters, throwOnError: false })
}

const near = new IntersectionObserver(
  (entries) => {
    for (const { isIntersecting, target } of entries) {
      if (isIntersecting) {
        near.unobserve(target)
        draw(target)
      }
    }
  },
  { rootMargin: "600px" },
)
for (const figure of document.querySelectorAll(".figure")) near.observe(figure)

new MutationObserver(() => {
  for (const place of document.querySelectorAll(".moving")) window.Plotly.relayout(place, { font: coloured() })
}).observe(document.body, { attributeFilter: ["data-theme"] })
