// Elements that stay the same from one run of the page to the next.

export const make = (tag, className = "", ...inside) => {
  const element = Object.assign(document.createElement(tag), { className })
  element.append(...inside)
  return element
}

// Put the children of an element into this order. A child that is already there is not touched, so nothing blinks.
export const arrange = (parent, children) => {
  const shown = [...parent.children]
  if (shown.length !== children.length || children.some((child, i) => child !== shown[i])) {
    parent.replaceChildren(...children)
  }
}

export const put = (element, text) => {
  if (element.textContent !== text) element.textContent = text
}

// No line ends between a number and its %.
export const unbroken = (text) => text.replace(/(\d) %/g, "$1\u00a0%")

export const putHtml = (element, html) => {
  if (element.shownHtml !== html) element.innerHTML = unbroken(html)
  element.shownHtml = html
}

// Return the element of each key. A missing one is made; elements of other keys are forgotten.
export const byKey = (elements, keys, makeOne) => {
  for (const key of elements.keys()) if (!keys.includes(key)) elements.delete(key)
  return keys.map((key) => {
    if (!elements.has(key)) elements.set(key, makeOne(key))
    return elements.get(key)
  })
}
