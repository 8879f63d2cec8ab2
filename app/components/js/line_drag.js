// Drag a line in a picture that a slider moves. The slider's strip has its position for each slider position.

const REACH = 10  // px on either side of a line

// Return [slider, positions of its line] of the line nearest to this x in client pixels; null if none is within reach.
const lineUnder = (box, x) => {
  const area = box.querySelector(".nsewdrag")?.getBoundingClientRect()
  if (!area || !box.pullable) return null
  const away = ([slider, line]) => Math.abs(box._fullLayout.xaxis.d2p(line[slider.place()]) + area.left - x)
  const [nearest] = box.pullable().sort((a, b) => away(a) - away(b))
  return nearest && away(nearest) <= REACH ? nearest : null
}

// Return the slider position whose line is nearest to this x; if several are, the one nearest to the thumb.
const placeUnder = (box, [slider, line], x) => {
  const { left } = box.querySelector(".nsewdrag").getBoundingClientRect(), { xaxis } = box._fullLayout
  let best = slider.place(), least = Infinity
  for (const [place, at] of line.entries()) {
    const away = Math.abs(xaxis.d2p(at) + left - x)
    const isNearer = Math.abs(place - slider.place()) < Math.abs(best - slider.place())
    if (away < least - 0.01 || (away < least + 0.01 && isNearer)) [best, least] = [place, Math.min(away, least)]
  }
  return best
}

// Handle the pointer before Plotly does, which would zoom.
export const makePullable = (box) => {
  let held = null
  const quiet = (event) => {
    event.stopPropagation()
    event.preventDefault()
  }
  const on = (name, act) => box.addEventListener(name, act, { capture: true, passive: false })
  on("pointerdown", (event) => {
    box.pulled = false
    held = event.button === 0 && event.target.closest(".nsewdrag") ? lineUnder(box, event.clientX) : null
    if (!held) return
    quiet(event)
    box.setPointerCapture(event.pointerId)
  })
  on("pointermove", (event) => {
    if (held) {
      quiet(event)
      held[0].pull(placeUnder(box, held, event.clientX))
    } else box.classList.toggle("rl-pullable", event.pointerType === "mouse" && lineUnder(box, event.clientX) !== null)
  })
  for (const name of ["pointerup", "pointercancel"]) {
    on(name, (event) => {
      if (!held) return
      quiet(event)
      held[0].letGo()
      held = null
      box.pulled = true
    })
  }
  for (const name of ["mousedown", "mousemove", "touchstart", "touchmove"]) on(name, (event) => { if (held) quiet(event) })
  on("click", (event) => {  // the end of a drag is not a click
    if (box.pulled) quiet(event)
    box.pulled = false
  })
}
