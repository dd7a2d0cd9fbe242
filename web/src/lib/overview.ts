// The small maps of all heads.
import type { Attention, Grid } from "./types";

export interface SmallMap {
  rows: number;
  columns: number;
  data: Uint8Array;
  /** Tokens per cell. */
  queries: number;
  keys: number;
}

/** The map of one head. All maps of an overview have the same size; a smaller one fills the upper left corner. */
export function smallMap(overview: Grid, attention: Attention, position: number, head: number): SmallMap {
  const [, heads, height, width] = overview.shape;
  const [queries, keys] = [Math.ceil(attention.queries / height), Math.ceil(attention.keys / width)];
  const [rows, columns] = [Math.ceil(attention.queries / queries), Math.ceil(attention.keys / keys)];
  const data = new Uint8Array(rows * columns);
  for (let row = 0; row < rows; row++) {
    const start = ((position * heads + head) * height + row) * width;
    data.set(overview.data.subarray(start, start + columns), row * columns);
  }
  return { rows, columns, data, queries, keys };
}
