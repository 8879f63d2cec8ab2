// Web Workers that train, one run of one seed at a time. A new list of jobs replaces the one before: what a worker is at
// ends within some thirty milliseconds, and its result is thrown away.

import { labEngine } from "./lab_engine.js"

const MOST = 4
const WORK = "onmessage = ({ data }) => postMessage({ number: data.number, curves: train(...data.job) })"

// A job is [experiment, threshold, seed]. `done` gets it with its curves, `say` a kind of trouble: "noWorkers", "failed".
export const makePool = (done, say) => {
  let jobs = [], current = 0, workers = []
  const busy = new Map()
  const give = (worker) => {
    if (busy.has(worker) || !jobs.length) return
    const job = jobs.shift()
    busy.set(worker, { job, number: current })
    worker.postMessage({ job, number: current })
  }
  const take = (worker, { number, curves }) => {
    const { job } = busy.get(worker)
    busy.delete(worker)
    if (number === current) done(job, curves)
    give(worker)
  }
  // Without workers the page trains between two redraws.
  const alone = () => {
    const { train } = labEngine()
    const page = { postMessage: ({ job, number }) => setTimeout(() => take(page, { number, curves: train(...job) })), terminate: () => {} }
    workers = [page]
    give(page)
  }
  try {
    const text = new Blob([`const { train } = (${labEngine})()\n${WORK}`], { type: "text/javascript" }), url = URL.createObjectURL(text)
    workers = Array.from({ length: Math.min(MOST, navigator.hardwareConcurrency || 2) }, () => new Worker(url))
    for (const worker of workers) {
      worker.onmessage = ({ data }) => take(worker, data)
      worker.onerror = () => {
        say("failed")
        const left = busy.get(worker)
        busy.delete(worker)
        if (left?.number === current) jobs.unshift(left.job)
        workers = workers.filter((other) => other !== worker)
        if (workers.length) workers.forEach(give)
        else alone()
      }
    }
  } catch (error) {  // a page may forbid them
    console.warn("rlcorr: no Web Workers:", error)
    say("noWorkers")
    alone()
  }
  return {
    start: (list) => {
      current++
      jobs = list
      for (const worker of workers) give(worker)
    },
    end: () => {
      jobs = []
      for (const worker of workers) worker.terminate()
    },
  }
}
