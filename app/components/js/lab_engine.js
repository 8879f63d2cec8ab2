// The Lab's training loop: one network, one threshold, one seed at a time. rlcorr/lab is its reference, and a test holds
// it to that: the same random numbers, the same order of draws, the same formulas. It needs nothing of a page: it is one
// function without anything around it, so that a Web Worker can be made of its text.

export const labEngine = () => {
  const SIDE = 6, PROMPTS = SIDE * SIDE, BASE = 8, HIDDEN = 24, ANSWERS = 8
  const START_REWARD = 0.3, START_STEPS = 600, START_RATE = 0.02
  const BETA1 = 0.9, BETA2 = 0.999, EPSILON = 1e-8, CLAMP = 20
  const INVERSE_FACTORIALS = [1]
  for (let j = 1; j < 12; j++) INVERSE_FACTORIALS.push(INVERSE_FACTORIALS[j - 1] / j)
  const DIGITS = [
    (a, b) => Math.floor((a + b) / BASE), (a, b) => a + b, (a, b) => a * b, (a, b) => a + 2 * b,
    (a, b) => 2 * a + b, (a, b) => a * a + b, (a, b) => a + b * b, (a, b) => a * a + b * b,
  ]

  // --- random numbers: mulberry32, by stream ---

  const mixed = (a) => {
    let t = Math.imul(a ^ (a >>> 15), 1 | a)
    t ^= t + Math.imul(t ^ (t >>> 7), 61 | t)
    return (t ^ (t >>> 14)) >>> 0
  }
  const uniforms = (seed, stream) => {
    let state = mixed(mixed(seed) + stream)
    return () => {
      state = (state + 0x6D2B79F5) | 0
      return mixed(state) / 4294967296
    }
  }
  const normals = (seed, stream) => {
    const next = uniforms(seed, stream)
    return () => Math.sqrt(-2 * Math.log(1 - next())) * Math.cos(2 * Math.PI * next())
  }

  // --- the network ---

  const targetsOf = (length) => Int32Array.from({ length: PROMPTS * length }, (_, k) => {
    const prompt = Math.floor(k / length)
    return DIGITS[k % length](Math.floor(prompt / SIDE), prompt % SIDE) % BASE
  })
  const filled = (size, draw) => Float64Array.from({ length: size }, draw)
  const newNetwork = (seed, length) => {
    const draw = normals(seed, 0), out = length * BASE
    const inner = filled(2 * SIDE * HIDDEN, () => 0.7 * draw()), outer = filled(HIDDEN * out, () => 0.2 * draw())
    return {
      inner, outer, out, hidden: new Float64Array(PROMPTS * HIDDEN), p: new Float64Array(PROMPTS * out),
      gInner: new Float64Array(inner.length), gOuter: new Float64Array(outer.length),
    }
  }
  // Turn logits into log π in place, and put π into `p`.
  const normalised = (logs, p) => {
    for (let base = 0; base < logs.length; base += BASE) {
      let most = -Infinity, sum = 0
      for (let v = base; v < base + BASE; v++) if (logs[v] > most) most = logs[v]
      for (let v = base; v < base + BASE; v++) sum += p[v] = Math.exp(logs[v] - most)
      const log = most + Math.log(sum)
      for (let v = base; v < base + BASE; v++) {
        p[v] /= sum
        logs[v] -= log
      }
    }
    return logs
  }
  // Fill the hidden layer, the probabilities and log π, (P, T, V), and return the last. New arrays would take a quarter of
  // the time.
  const forward = ({ inner, outer, out, hidden, p }, logs) => {
    logs.fill(0)
    for (let q = 0; q < PROMPTS; q++) {
      const a = Math.floor(q / SIDE) * HIDDEN, b = (SIDE + q % SIDE) * HIDDEN, row = q * out
      for (let i = 0; i < HIDDEN; i++) {
        const h = 1 - 2 / (Math.exp(2 * (inner[a + i] + inner[b + i])) + 1), from = i * out  // tanh, in half its time
        hidden[q * HIDDEN + i] = h
        for (let o = 0; o < out; o++) logs[row + o] += h * outer[from + o]
      }
    }
    return normalised(logs, p)
  }
  // Turn the gradient by the logits, (P, T, V), into those of the weights. `learns` says which prompts have any.
  const backward = ({ outer, out, hidden, gInner, gOuter }, g, learns) => {
    gInner.fill(0)
    gOuter.fill(0)
    for (let q = 0; q < PROMPTS; q++) {
      if (!learns[q]) continue
      const a = Math.floor(q / SIDE) * HIDDEN, b = (SIDE + q % SIDE) * HIDDEN, row = q * out
      for (let i = 0; i < HIDDEN; i++) {
        const h = hidden[q * HIDDEN + i], from = i * out
        let sum = 0
        for (let o = 0; o < out; o++) {
          sum += g[row + o] * outer[from + o]
          gOuter[from + o] += g[row + o] * h
        }
        const d = sum * (1 - h * h)
        gInner[a + i] += d
        gInner[b + i] += d
      }
    }
  }
  // Return what takes a step along the gradient that `backward` has left: of AdamW without decay, or of SGD.
  const updater = (net, name, rate) => {
    const all = [[net.inner, net.gInner], [net.outer, net.gOuter]].map(([x, g]) => [x, g, new Float64Array(x.length), new Float64Array(x.length)])
    let step = 0
    return () => {
      step++
      const size = rate / (1 - BETA1 ** step), root = Math.sqrt(1 - BETA2 ** step)
      for (const [x, g, m, v] of all) {
        for (let i = 0; i < x.length; i++) {
          m[i] += (1 - BETA1) * (g[i] - m[i])
          v[i] = BETA2 * v[i] + (1 - BETA2) * g[i] * g[i]
          x[i] -= name === "sgd" ? rate * g[i] : size * m[i] / (Math.sqrt(v[i]) / root + EPSILON)
        }
      }
    }
  }
  const exactReward = (logs, right, length) => {
    let sum = 0
    for (let q = 0; q < PROMPTS; q++) {
      let log = 0
      for (let t = 0; t < length; t++) log += logs[(q * length + t) * BASE + right[q * length + t]]
      sum += Math.exp(log)
    }
    return sum / PROMPTS
  }

  // --- the start: trained on right answers until the reward is 0.3 ---

  const starts = new Map()
  const start = (seed, length) => {
    const key = `${seed},${length}`, net = newNetwork(seed, length)
    if (!starts.has(key)) starts.set(key, trainedStart(newNetwork(seed, length), length))
    for (const name of ["inner", "outer"]) net[name].set(starts.get(key)[name])
    return net
  }
  const trainedStart = (net, length) => {
    const right = targetsOf(length), update = updater(net, "adamw", START_RATE)
    const logs = new Float64Array(net.p.length), g = new Float64Array(net.p.length), all = new Uint8Array(PROMPTS).fill(1)
    for (let k = 0; k < START_STEPS && !(exactReward(forward(net, logs), right, length) > START_REWARD); k++) {
      for (let i = 0; i < g.length; i++) g[i] = net.p[i] / (PROMPTS * length)
      for (let i = 0; i < right.length; i++) g[i * BASE + right[i]] -= 1 / (PROMPTS * length)
      backward(net, g, all)
      update()
    }
    return net
  }

  // --- one training run ---

  // Return what draws digits: `prepare` takes the eight probabilities of a token, `choose` a number, and returns the
  // first digit whose cumulative sum is above it.
  const chooser = (topP, length) => {
    const sums = new Float64Array(length * BASE), order = new Int32Array(BASE), kept = new Float64Array(BASE)
    const nucleus = (p, base) => {
      for (let v = 0; v < BASE; v++) order[v] = v
      order.sort((x, y) => p[base + y] - p[base + x] || x - y)
      kept.fill(0)
      let before = 0
      for (const v of order) {
        if (!(before < topP)) break
        kept[v] = p[base + v]
        before += kept[v]
      }
    }
    const prepare = (t, p, base) => {
      if (topP < 1) nucleus(p, base)
      let sum = 0
      for (let v = 0; v < BASE; v++) sums[t * BASE + v] = sum += topP < 1 ? kept[v] : p[base + v]
    }
    const choose = (t, number) => {
      const base = t * BASE, level = number * sums[base + BASE - 1]
      let v = 0
      while (v < BASE - 1 && level >= sums[base + v]) v++
      return v
    }
    return { prepare, choose }
  }
  const clamped = (d) => Math.max(-CLAMP, Math.min(CLAMP, d))
  const k3 = (d, e = Math.exp(clamped(d))) => {  // e^d - 1 - d, by its series near 0, as in rlcorr.ratios
    const c = clamped(d)
    if (Math.abs(c) >= 0.25) return e - 1 - c
    let sum = 0
    for (let j = 11; j >= 2; j--) sum = sum * c + INVERSE_FACTORIALS[j]
    return c * c * sum
  }
  // Name of a KL estimator → its value and the derivative of its loss at δ = log π − log π_ref.
  const PENALTIES = {
    k1: [(x) => x, () => 1], k2: [(x) => x * x / 2, (x) => x],
    k3: [(x) => k3(-x), (x) => 1 - Math.exp(-clamped(x))], "k3+": [(x) => k3(-x), (x) => x],
  }
  // Return which log w a bound changes, and what turns the others and these into weights. `threshold` null: no weights.
  const boundOf = ({ ratio, bound }, threshold) => {
    const isWeighted = ratio !== "none" && threshold !== null, isTwoSided = bound === "band" || bound === "reject"
    const top = isWeighted ? Math.log(threshold) : Infinity, bottom = isWeighted && isTwoSided ? -top : -Infinity
    return { isOutside: (log) => log > top || log < bottom, isRatio: isWeighted && bound !== "reject", outside: bound === "cap" ? threshold : 0 }
  }

  // A training run: `step` returns the numbers before its update, as the curves of rlcorr.lab have them.
  const newRun = (experiment, threshold, seed) => {
    const { lag, noise, top_p: topP, length, ratio, penalty, penalty_coef: coef } = experiment
    const net = start(seed, length), right = targetsOf(length), { out } = net, count = PROMPTS * ANSWERS * length
    const update = updater(net, experiment.optimizer, experiment.learning_rate)
    const { isOutside, isRatio, outside } = boundOf(experiment, threshold), [value, slope] = PENALTIES[penalty] ?? []
    const history = [], chosen = chooser(topP, length), g = new Float64Array(PROMPTS * out), learns = new Uint8Array(PROMPTS)
    const drawn = new Int32Array(ANSWERS * length), score = new Float64Array(ANSWERS), d = new Float64Array(length)
    const q = new Float64Array(PROMPTS * out), isPerAnswer = ratio === "sequence" || ratio === "geometric"
    let reference = null, steps = 0
    const sample = (uniform, prompt) => {
      for (let t = 0; t < length; t++) chosen.prepare(t, q, (prompt * length + t) * BASE)
      for (let k = 0; k < drawn.length; k++) drawn[k] = chosen.choose(k % length, uniform())
    }
    // Put GRPO's advantages of the answers into `score`: (r - mean) / (sd + 1e-6), with n - 1 in the variance.
    const judge = (prompt) => {
      let mean = 0, square = 0
      for (let j = 0; j < ANSWERS; j++) {
        score[j] = 1
        for (let t = 0; t < length; t++) if (drawn[j * length + t] !== right[prompt * length + t]) score[j] = 0
        mean += score[j] / ANSWERS
      }
      for (let j = 0; j < ANSWERS; j++) square += (score[j] - mean) ** 2
      const sd = Math.sqrt(square / (ANSWERS - 1)) + 1e-6
      for (let j = 0; j < ANSWERS; j++) score[j] = (score[j] - mean) / sd
    }
    const ofAnswer = () => d.reduce((sum, x) => sum + x) / (ratio === "sequence" ? 1 : length)
    const step = () => {
      const now = forward(net, history.length > lag ? history.shift() : new Float64Array(q.length)), sums = { w: 0, w2: 0, clipped: 0, ratio: 0, k3: 0, penalty: 0, kl: 0 }
      reference ??= now.slice()
      history.push(now)
      const shake = normals(seed, 2 + 2 * steps)
      const old = noise > 0 ? normalised(history[0].map((x) => x + noise * shake()), q) : history[0]
      for (let i = 0; i < q.length; i++) q[i] = Math.exp(old[i])
      const uniform = uniforms(seed, 1 + 2 * steps)
      g.fill(0)
      for (let prompt = 0; prompt < PROMPTS; prompt++) {
        sample(uniform, prompt)
        judge(prompt)
        learns[prompt] = penalty === "none" ? 0 : 1
        for (let j = 0; j < ANSWERS; j++) {
          if (score[j] !== 0) learns[prompt] = 1
          for (let t = 0; t < length; t++) {
            const at = (prompt * length + t) * BASE + drawn[j * length + t]
            d[t] = now[at] - old[at]
          }
          const log = isPerAnswer ? ofAnswer() : 0, exp = isPerAnswer ? Math.exp(clamped(log)) : 0
          for (let t = 0; t < length; t++) {
            const at = (prompt * length + t) * BASE + drawn[j * length + t], r = Math.exp(clamped(d[t]))
            const isOut = isOutside(isPerAnswer ? log : d[t])
            const w = isOut ? outside : !isRatio ? 1 : isPerAnswer ? exp : r
            sums.w += w
            sums.w2 += w * w
            sums.clipped += isOut
            sums.ratio += r
            sums.k3 += k3(d[t], r)
            g[at] -= w * score[j] / count
            if (value) {
              const delta = now[at] - reference[at]
              sums.penalty += value(delta)
              g[at] += coef * slope(delta) / count
            }
          }
        }
      }
      for (let base = 0; base < g.length; base += BASE) {  // ∇ log π_v = e_v - π
        let sum = 0
        for (let v = base; v < base + BASE; v++) sum += g[v]
        for (let v = base; v < base + BASE; v++) {
          g[v] -= sum * net.p[v]
          sums.kl += net.p[v] * (now[v] - reference[v])
        }
      }
      backward(net, g, learns)
      update()
      steps++
      return {
        reward: exactReward(now, right, length), kl: sums.kl / PROMPTS, penalty: sums.penalty / count,
        ess: sums.w2 && sums.w * sums.w / (count * sums.w2), clipped: sums.clipped / count, mean_ratio: sums.ratio / count,
        k3: sums.k3 / count,
      }
    }
    return { step }
  }
  // Return the curves of a whole run: name → (steps,).
  const train = (experiment, threshold, seed) => {
    const run = newRun(experiment, threshold, seed), rows = Array.from({ length: experiment.steps }, () => run.step())
    return Object.fromEntries(Object.keys(rows[0]).map((name) => [name, Float64Array.from(rows, (row) => row[name])]))
  }
  return { train }
}
