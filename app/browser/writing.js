// Puts what an answer says over what the page shows. Numbers are found by their label: a page that is still being built
// may show other numbers, or fewer.

// React keeps its text node, and goes on from there.
const put = (element, text) => {
  let node = element
  while (node?.lastChild) node = node.lastChild
  if (node && node.nodeValue !== text) node.nodeValue = text
}

export const write = ({ numbers, texts }) => {
  for (const metric of document.querySelectorAll('.st-key-numbers [data-testid="stMetric"]')) {
    const number = numbers[metric.querySelector('[data-testid="stMetricLabel"] p').textContent]
    if (!number) continue
    put(metric.querySelector('[data-testid="stMetricValue"]'), number.text)
    if (number.beside !== null) put(metric.querySelector('[data-testid="stMetricDelta"]'), number.beside)
  }
  for (const [css, text] of Object.entries(texts)) put(document.querySelector(css), text)
}
