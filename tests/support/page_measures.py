"""Scripts that measure a page in a browser: the share of the window that its pictures have, and how much jumps."""

SHARE = """() => {
  const held = document.querySelector(".rl-held")?.getBoundingClientRect()  // the slider, which may cover a picture
  return [...document.querySelectorAll(".rl-picture, .rl-tiles, .rl-ends")].reduce((sum, one) => {
    const { left, right, top, bottom } = one.getBoundingClientRect()
    const end = Math.min(bottom, held && held.top > top ? held.top : innerHeight, innerHeight)
    return sum + Math.max(0, Math.min(right, innerWidth) - left) * Math.max(0, end - Math.max(top, 0))
  }, 0) / (innerWidth * innerHeight)
}"""
# Sizes of the jumps, without those that somebody caused.
SHIFTS = """() => {
    window.shifts = []
    const note = (list) => { for (const one of list.getEntries()) if (!one.hadRecentInput) shifts.push(one.value) }
    new PerformanceObserver(note).observe({ type: "layout-shift", buffered: true })
}"""
