// Where the numbers of one trace come from: the server, or the file this page lies in. Views do not know which.
import { ApiError, bytes, get, post } from "./api";
import type { Cell, Embedded, Grid, Measures, Packed, Row, Trace } from "./types";

export interface Source {
  trace: Trace;
  /** Small maps of all heads; of a long text the first layers are told before the last are there. */
  overview(told: (grid: Grid) => void): Promise<void>;
  tile(attention: number, head: number, level: number, row: number, column: number): Promise<Grid | null>;
  row(attention: number, head: number, query: number): Promise<Row | null>;
  cell(attention: number, head: number, query: number, key: number): Promise<Cell | null>;
  measures(): Promise<Measures | null>;
}

export interface Asked {
  run: string;
  text: string;
  other: string | null;
  checkpoint: number | null;
}

// Seconds the server may take for each picture: the first soon, the whole in the end.
const WAITS = [0.5, 2, 6, 600];

class ServerSource implements Source {
  constructor(
    public trace: Trace,
    private asked: Asked,
  ) {}

  // The server keeps only the newest traces; one that is gone is read again, once.
  private async from<T>(read: (base: string) => Promise<T>): Promise<T> {
    try {
      return await read(`traces/${this.trace.trace}`);
    } catch (error) {
      if (!(error instanceof ApiError) || error.status !== 404) throw error;
      this.trace = await post<Trace>("traces", this.asked);
      return read(`traces/${this.trace.trace}`);
    }
  }

  async overview(told: (grid: Grid) => void): Promise<void> {
    for (const wait of WAITS) {
      const grid = await this.from((base) => bytes(`${base}/overview?size=64&wait=${wait}`));
      told(grid);
      if ((grid.ready ?? 0) >= grid.shape[0]) return;
    }
  }

  tile = (attention: number, head: number, level: number, row: number, column: number) =>
    this.from((base) =>
      bytes(`${base}/tile?attention=${attention}&head=${head}&level=${level}&row=${row}&column=${column}`),
    );
  row = (attention: number, head: number, query: number) =>
    this.from((base) => get<Row>(`${base}/row?attention=${attention}&head=${head}&query=${query}`));
  cell = (attention: number, head: number, query: number, key: number) =>
    this.from((base) => get<Cell>(`${base}/cell?attention=${attention}&head=${head}&query=${query}&key=${key}`));
  measures = () => this.from((base) => get<Measures>(`${base}/measures`));
}

function unpack(packed: Packed): Grid {
  const text = atob(packed.data);
  return { shape: packed.shape, data: Uint8Array.from(text, (letter) => letter.charCodeAt(0)) };
}

class FileSource implements Source {
  trace: Trace;
  private tiles = new Map<string, Grid>();

  constructor(private file: Embedded) {
    this.trace = file.trace;
  }

  async overview(told: (grid: Grid) => void): Promise<void> {
    told(unpack(this.file.overview));
  }

  async tile(attention: number, head: number, level: number, row: number, column: number): Promise<Grid | null> {
    const key = `${attention}/${head}/${level}/${row}/${column}`;
    const packed = this.file.tiles?.[key];
    if (!packed) return null;
    const found = this.tiles.get(key) ?? unpack(packed);
    this.tiles.set(key, found);
    return found;
  }

  // Without a row of its own, it is read off the tiles of single tokens, to the eight bits that they hold.
  async row(attention: number, head: number, query: number): Promise<Row | null> {
    const kept = this.file.rows?.[`${attention}/${head}/${query}`];
    if (kept) return kept;
    const weights: [number, number][] = [];
    const columns = Math.ceil(this.trace.attentions[attention].keys / 256);
    for (let column = 0; column < columns; column++) {
      const tile = await this.tile(attention, head, 0, Math.floor(query / 256), column);
      if (!tile) continue;
      const width = tile.shape[1];
      for (let k = 0; k < width; k++) {
        const value = tile.data[(query % 256) * width + k] / 255;
        if (value > 0) weights.push([column * 256 + k, value * value]);
      }
    }
    if (!weights.length) return null;
    const total = weights.reduce((sum, [, weight]) => sum + weight, 0);
    const entropy = -weights.reduce((sum, [, weight]) => sum + (weight / total) * Math.log(weight / total), 0);
    return { query, weights: weights.sort((a, b) => b[1] - a[1]).slice(0, 64), entropy, seen: weights.length };
  }

  cell = async (attention: number, head: number, query: number, key: number) =>
    this.file.cells?.[`${attention}/${head}/${query}/${key}`] ?? null;
  measures = async () => this.file.measures ?? null;
}

/** The trace this document carries inside itself, if it does. */
export function embedded(): { source: Source; file: Embedded } | null {
  const element = document.getElementById("regard-data");
  if (!element?.textContent) return null;
  const file = JSON.parse(element.textContent) as Embedded;
  return { source: new FileSource(file), file };
}

const kept = new Map<string, Promise<Source>>();

/** A text read by a run. The newest few are kept, so that going back and forth asks nothing again. */
export function read(asked: Asked): Promise<Source> {
  const key = JSON.stringify(asked);
  const found = kept.get(key);
  if (found) return found;
  const made = post<Trace>("traces", asked).then((trace) => new ServerSource(trace, asked) as Source);
  made.catch(() => kept.delete(key));
  kept.set(key, made);
  if (kept.size > 4) kept.delete(kept.keys().next().value!);
  return made;
}
