// Ask the server what changes while something is dragged. The result is null if the address no longer answers, for
// example after a restart, or if the configuration refuses the bounds.

import { readStrip } from "./strip_reading.js"

const got = async (address, type) => {
  const response = await fetch(new URL(address, document.baseURI))
  return response.ok && response.headers.get("content-type").startsWith(type) ? response : null
}

export const answered = async (address, value) => (await got(`${address}?at=${value}`, "application/json"))?.json() ?? null

// Address → strip, for the strips that are loaded already.
export const strips = new Map()

export const fetched = async (address) => {
  if (strips.has(address)) return strips.get(address)
  const response = await got(address, "application/octet-stream")
  return response && readStrip(await response.arrayBuffer())
}
