// A line that a slider moves through a picture, pulled itself: where it lies at each place, the slider's strip says.

const REACH = 10  // px to either side of a line

// [slider, its line's positions] of the line that is nearest to this x in client pixels, none beyond reach.
const lineUnder = (box, x) => {
  const area = box.querySelector(".nsewdrag")?.getBoundingClientRect()
  if (!area || !box.pullable) return null
  const away = ([slider, line]) => Math.abs(box._fullLayout.xaxis.d2p(line[slider.place()]) + area.left - x)
  const [nearest] = box.pullable().sort((a, b) => away(a) - away(b))
  return nearest && away(nearest) <= REACH ? nearest : null
}

// The place whose line is nearest to this x; of several the one nearest to where the thumb is.
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

// Takes the pointer before Plotly does, which would zoom.
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
  on("click", (event) => {  // the end of a pull is no click
    if (box.pulled) quiet(event)
    box.pulled = false
  })
}
