// What moves while something is dragged, asked of the server; nothing where an address no longer answers, as after a
// restart, or for bounds that the configuration refuses.

import { readStrip } from "./strip_reading.js"

const got = async (address, type) => {
  const response = await fetch(new URL(address, document.baseURI))
  return response.ok && response.headers.get("content-type").startsWith(type) ? response : null
}

export const answered = async (address, value) => (await got(`${address}?at=${value}`, "application/json"))?.json() ?? null

// Strips that have come already, by their address.
export const strips = new Map()

export const fetched = async (address) => {
  if (strips.has(address)) return strips.get(address)
  const response = await got(address, "application/octet-stream")
  return response && readStrip(await response.arrayBuffer())
}
