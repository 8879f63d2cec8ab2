// Return the numbers of a list. Plotly sends long lists as base64 of their bytes.
const ARRAYS = {
  f8: Float64Array, f4: Float32Array, i4: Int32Array, u4: Uint32Array, i2: Int16Array, u2: Uint16Array, i1: Int8Array,
  u1: Uint8Array,
}

export const unpacked = (values) => {
  if (values === undefined || values === null || Array.isArray(values)) return values
  const bytes = Uint8Array.from(atob(values.bdata), (c) => c.charCodeAt(0))
  const flat = Array.from(new ARRAYS[values.dtype](bytes.buffer))
  if (values.shape === undefined) return flat
  const columns = Number(String(values.shape).split(",")[1])
  return Array.from({ length: flat.length / columns }, (_, i) => flat.slice(i * columns, (i + 1) * columns))
}
