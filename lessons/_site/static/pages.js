// What the browser draws: formulas, and figures and live parts as they come near. Until then, and on paper, a figure is a
// picture.

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

const coloured = () => ({ color: dark() ? "#e4e7eb" : "#1f2933" })

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

// --- live parts, whose script and files are those of the site ---

const FROM_A_FILE = "This picture does not move, because the page was opened as a file, and the browser lets such a page read " +
  "no other files. Serve the folder of the site, for example with python3 -m http.server, and open http://localhost:8000/lessons/."
const LATE = "This picture does not move, because a file of the site could not be read."

const styled = (href) => new Promise((resolve, reject) => {
  const link = Object.assign(document.createElement("link"), { rel: "stylesheet", href, onload: resolve })
  link.onerror = () => reject(new Error(`${href} could not be read`))
  document.head.append(link)
})

let script
const showPart = async (host) => {
  script ??= Promise.all([run({ src: `${ROOT}../lesson.js` }), styled(`${ROOT}../lesson.css`)])
  await Promise.all([script, loaded()])
  await window.showLessonPart(host)
}

async function drawPart(host) {
  try {
    if (location.protocol === "file:") throw new Error(FROM_A_FILE)
    await showPart(host)
  } catch ({ message }) {
    const refused = host.querySelector(".live-refused")
    refused.textContent = message === FROM_A_FILE ? message : `${LATE} ${message}`
    refused.hidden = false
    await draw(host.querySelector(".still"))
  }
}

// More practice, appendix and solutions are folded, unless the address points into them.
for (const part of document.querySelectorAll("#more-practice, #appendix, #solutions")) {
  const folded = document.createElement("details"), summary = document.createElement("summary")
  const [heading, ...rest] = part.children
  summary.append(heading)
  folded.append(summary, ...rest)
  part.append(folded)
  const unfold = () => { folded.open ||= part.contains(document.getElementById(location.hash.slice(1))) }
  window.addEventListener("hashchange", unfold)
  unfold()
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
        target.className === "live" ? drawPart(target) : draw(target)
      }
    }
  },
  { rootMargin: "600px" },
)
for (const figure of document.querySelectorAll(".figure, .live")) near.observe(figure)

const recolour = () => {
  for (const place of document.querySelectorAll(".moving, .rl-picture")) {
    if (place.data) window.Plotly.relayout(place, { "font.color": coloured().color })
  }
}
new MutationObserver(recolour).observe(document.body, { attributeFilter: ["data-theme"] })
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", recolour)
