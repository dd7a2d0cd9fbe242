// The tiles of one head, fetched when they come into sight and forgotten when too many are held.
import { paint } from "./colour";
import type { Source } from "./source";
import type { Attention, Grid } from "./types";

export const SIDE = 256;
const HELD = 160;
const AT_ONCE = 6;

interface Tile {
  grid: Grid | null;
  picture: HTMLCanvasElement | null;
  look: string;
}

export class Tiles {
  readonly deepest: number;
  private held = new Map<string, Tile>();
  private waiting: { key: string; level: number; row: number; column: number }[] = [];
  private asked = new Set<string>();
  private closed = false;
  /** The first sentence of what went wrong, if anything did. */
  failure = "";

  constructor(
    private source: Source,
    readonly attention: Attention,
    readonly head: number,
    private changed: () => void,
  ) {
    const longest = Math.max(attention.queries, attention.keys);
    this.deepest = Math.max(0, Math.ceil(Math.log2(longest / SIDE)));
  }

  /** True where the mask of a causal map leaves nothing: such a tile is never asked for. */
  private blank(level: number, row: number, column: number): boolean {
    const span = SIDE << level;
    return this.attention.causal && this.attention.sides === "own" && column * span > (row + 1) * span - 1;
  }

  picture(level: number, row: number, column: number, dark: boolean, gain: number): HTMLCanvasElement | null {
    const key = `${level}/${row}/${column}`;
    const tile = this.held.get(key);
    if (!tile?.grid) return null;
    this.held.delete(key);
    this.held.set(key, tile);
    const look = `${dark}/${gain}`;
    if (!tile.picture || tile.look !== look) {
      tile.picture = paint(tile.grid.data, tile.grid.shape[0], tile.grid.shape[1], dark, gain);
      tile.look = look;
    }
    return tile.picture;
  }

  /** The weight of one pair as the map shows it, where its tile is here. */
  weight(query: number, key: number): number | null {
    const grid = this.held.get(`0/${Math.floor(query / SIDE)}/${Math.floor(key / SIDE)}`)?.grid;
    if (!grid) return null;
    const value = grid.data[(query % SIDE) * grid.shape[1] + (key % SIDE)] / 255;
    return value * value;
  }

  /** Say what is in sight now; what was waiting and is out of sight is not asked for any more. */
  want(level: number, places: [number, number][]): void {
    this.waiting = places
      .map(([row, column]) => ({ key: `${level}/${row}/${column}`, level, row, column }))
      .filter(({ key, row, column }) => !this.held.has(key) && !this.asked.has(key) && !this.blank(level, row, column));
    this.next();
  }

  private next(): void {
    while (!this.closed && this.asked.size < AT_ONCE && this.waiting.length) {
      const { key, level, row, column } = this.waiting.shift()!;
      this.asked.add(key);
      this.source
        .tile(this.attention.index, this.head, level, row, column)
        .then(
          (grid) => this.held.set(key, { grid, picture: null, look: "" }),
          (error: Error) => {
            this.failure = error.message;
            this.held.set(key, { grid: null, picture: null, look: "" });
          },
        )
        .then(() => {
          this.asked.delete(key);
          if (this.held.size > HELD) this.held.delete(this.held.keys().next().value!);
          if (this.closed) return;
          this.changed();
          this.next();
        });
    }
  }

  close(): void {
    this.closed = true;
    this.waiting = [];
  }
}
