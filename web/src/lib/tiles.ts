// The tiles of one head: fetched when they become visible, evicted when too many are cached.
import { paint } from "./color";
import type { TraceSource } from "./trace_source";
import type { Attention, Grid } from "./types";

export const SIDE = 256;
const CACHED = 160;
const CONCURRENT = 6;

interface Tile {
  grid: Grid | null;
  image: HTMLCanvasElement | null;
  style: string;
}

export class Tiles {
  readonly coarsest: number;
  private cache = new Map<string, Tile>();
  private queue: { key: string; level: number; row: number; column: number }[] = [];
  private pending = new Set<string>();
  private closed = false;
  /** The error message of a failed request. */
  error = "";

  constructor(
    private source: TraceSource,
    readonly attention: Attention,
    readonly head: number,
    private onload: () => void,
  ) {
    const longest = Math.max(attention.queries, attention.keys);
    this.coarsest = Math.max(0, Math.ceil(Math.log2(longest / SIDE)));
  }

  /** True if the causal mask covers the whole tile: such a tile is never requested. */
  private isMasked(level: number, row: number, column: number): boolean {
    const span = SIDE << level;
    return this.attention.causal && this.attention.kind === "self" && column * span > (row + 1) * span - 1;
  }

  image(level: number, row: number, column: number, dark: boolean, gain: number): HTMLCanvasElement | null {
    const key = `${level}/${row}/${column}`;
    const tile = this.cache.get(key);
    if (!tile?.grid) return null;
    this.cache.delete(key);
    this.cache.set(key, tile);
    const style = `${dark}/${gain}`;
    if (!tile.image || tile.style !== style) {
      tile.image = paint(tile.grid.data, tile.grid.shape[0], tile.grid.shape[1], dark, gain);
      tile.style = style;
    }
    return tile.image;
  }

  /** The weight of one query and key with the precision of the map, if its tile is loaded. */
  weight(query: number, key: number): number | null {
    const grid = this.cache.get(`0/${Math.floor(query / SIDE)}/${Math.floor(key / SIDE)}`)?.grid;
    if (!grid) return null;
    const value = grid.data[(query % SIDE) * grid.shape[1] + (key % SIDE)] / 255;
    return value * value;
  }

  /** Request the visible tiles; queued requests of tiles that are no longer visible are dropped. */
  request(level: number, visible: [number, number][]): void {
    this.queue = visible
      .map(([row, column]) => ({ key: `${level}/${row}/${column}`, level, row, column }))
      .filter(({ key, row, column }) => !this.cache.has(key) && !this.pending.has(key) && !this.isMasked(level, row, column));
    this.next();
  }

  private next(): void {
    while (!this.closed && this.pending.size < CONCURRENT && this.queue.length) {
      const { key, level, row, column } = this.queue.shift()!;
      this.pending.add(key);
      this.source
        .tile(this.attention.index, this.head, level, row, column)
        .then(
          (grid) => this.cache.set(key, { grid, image: null, style: "" }),
          (error: Error) => {
            this.error = error.message;
            this.cache.set(key, { grid: null, image: null, style: "" });
          },
        )
        .then(() => {
          this.pending.delete(key);
          if (this.cache.size > CACHED) this.cache.delete(this.cache.keys().next().value!);
          if (this.closed) return;
          this.onload();
          this.next();
        });
    }
  }

  close(): void {
    this.closed = true;
    this.queue = [];
  }
}
