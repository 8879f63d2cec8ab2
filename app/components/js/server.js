
import { readStrip } from "./strip_reading.js"

// Address → strip, for the strips that are loaded already.
export const strips = new Map()

// Return a strip; null if the address no longer answers, for example after a restart, or if the correction refuses a bound.
export const fetched = async (address) => {
  if (strips.has(address)) return strips.get(address)
  const response = await fetch(new URL(address, document.baseURI))
  const isStrip = response.ok && response.headers.get("content-type").startsWith("application/octet-stream")
  return isStrip ? readStrip(await response.arrayBuffer()) : null
}
