// The data of one trace, from the server or embedded in this file. Views use both through the same interface.
import { ApiError, get, getGrid, post } from "./api";
import { HeadCells } from "./file_cells";
import type { Cell, EmbeddedTrace, EncodedGrid, Grid, Measures, Row, Trace } from "./types";

export interface TraceSource {
  trace: Trace;
  /** Small maps of all heads. For a long text, `update` is called several times as layers become ready. */
  overview(update: (grid: Grid) => void): Promise<void>;
  tile(attention: number, head: number, level: number, row: number, column: number): Promise<Grid | null>;
  row(attention: number, head: number, query: number): Promise<Row | null>;
  cell(attention: number, head: number, query: number, key: number): Promise<Cell | null>;
  measures(): Promise<Measures | null>;
}

export interface TraceRequest {
  run: string;
  text: string;
  target: string | null;
  checkpoint: number | null;
}

// Seconds that the server may take for each overview: short at first, so that the first layers appear early.
const WAITS = [0.5, 2, 6, 600];

class ServerTrace implements TraceSource {
  constructor(
    public trace: Trace,
    private request: TraceRequest,
  ) {}

  // The server caches only the newest traces; an evicted trace is requested again, once.
  private async load<T>(read: (base: string) => Promise<T>): Promise<T> {
    try {
      return await read(`traces/${this.trace.id}`);
    } catch (error) {
      if (!(error instanceof ApiError) || error.status !== 404) throw error;
      this.trace = await post<Trace>("traces", this.request);
      return read(`traces/${this.trace.id}`);
    }
  }

  async overview(update: (grid: Grid) => void): Promise<void> {
    for (const wait of WAITS) {
      const grid = await this.load((base) => getGrid(`${base}/overview?size=64&wait=${wait}`));
      update(grid);
      if ((grid.ready ?? 0) >= grid.shape[0]) return;
    }
  }

  tile = (attention: number, head: number, level: number, row: number, column: number) =>
    this.load((base) =>
      getGrid(`${base}/tile?attention=${attention}&head=${head}&level=${level}&row=${row}&column=${column}`),
    );
  row = (attention: number, head: number, query: number) =>
    this.load((base) => get<Row>(`${base}/row?attention=${attention}&head=${head}&query=${query}`));
  cell = (attention: number, head: number, query: number, key: number) =>
    this.load((base) => get<Cell>(`${base}/cell?attention=${attention}&head=${head}&query=${query}&key=${key}`));
  measures = () => this.load((base) => get<Measures>(`${base}/measures`));
}

function decode({ shape, data }: EncodedGrid): Grid {
  return { shape, data: Uint8Array.from(atob(data), (character) => character.charCodeAt(0)) };
}

// -Σ p log p in nats, p = |w| / Σ |w|: weights may be negative or sum to less than 1 (`Strip.entropy` of the server).
function entropyOf(weights: number[]): number {
  const sizes = weights.map(Math.abs).filter((size) => size > 0);
  const total = sizes.reduce((sum, size) => sum + size, 0);
  return -sizes.reduce((sum, size) => sum + (size / total) * Math.log(size / total), 0);
}

class FileTrace implements TraceSource {
  trace: Trace;
  private tiles = new Map<string, Grid>();
  private heads = new Map<string, HeadCells>();

  constructor(private file: EmbeddedTrace) {
    this.trace = file.trace;
  }

  async overview(update: (grid: Grid) => void): Promise<void> {
    update(decode(this.file.overview));
  }

  async tile(attention: number, head: number, level: number, row: number, column: number): Promise<Grid | null> {
    const key = `${attention}/${head}/${level}/${row}/${column}`;
    const encoded = this.file.tiles?.[key];
    if (!encoded) return null;
    const grid = this.tiles.get(key) ?? decode(encoded);
    this.tiles.set(key, grid);
    return grid;
  }

  // A row follows from the cells; otherwise it is in the file, or read from the finest tiles with 8-bit precision.
  async row(attention: number, head: number, query: number): Promise<Row | null> {
    const row = this.file.rows?.[`${attention}/${head}/${query}`];
    if (row) return row;
    const cells = this.cells(attention, head);
    if (cells) {
      const { weights, shown } = cells.weights(query, this.visible(attention, query));
      const listed = weights.map((weight, k): [number, number] => [k, weight]).filter(([, weight]) => weight > 0);
      return { query, weights: listed.sort((a, b) => b[1] - a[1]).slice(0, 64), entropy: entropyOf(weights), visible_keys: shown };
    }
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
    const entropy = entropyOf(weights.map(([, weight]) => weight));
    return { query, weights: weights.sort((a, b) => b[1] - a[1]).slice(0, 64), entropy, visible_keys: weights.length };
  }

  private cells(attention: number, head: number): HeadCells | null {
    const place = `${attention}/${head}`;
    const vectors = this.file.cells?.[place];
    if (!vectors) return null;
    const cells = this.heads.get(place) ?? new HeadCells(vectors);
    this.heads.set(place, cells);
    return cells;
  }

  private visible(attention: number, query: number): number {
    const { causal, keys } = this.trace.attentions[attention];
    return causal ? Math.min(query + 1, keys) : keys;
  }

  async cell(attention: number, head: number, query: number, key: number): Promise<Cell | null> {
    return this.cells(attention, head)?.cell(query, key, this.visible(attention, query)) ?? null;
  }
  measures = async () => this.file.measures ?? null;
}

/** The trace that is embedded in this document, if there is one. */
export function embeddedTrace(): { source: TraceSource; file: EmbeddedTrace } | null {
  const element = document.getElementById("regard-data");
  if (!element?.textContent) return null;
  const file = JSON.parse(element.textContent) as EmbeddedTrace;
  return { source: new FileTrace(file), file };
}

const cache = new Map<string, Promise<TraceSource>>();

/** Trace a text with a run. The last few traces are cached, so going back sends no request. */
export function loadTrace(request: TraceRequest): Promise<TraceSource> {
  const key = JSON.stringify(request);
  const cached = cache.get(key);
  if (cached) return cached;
  const source = post<Trace>("traces", request).then((trace) => new ServerTrace(trace, request) as TraceSource);
  source.catch(() => cache.delete(key));
  cache.set(key, source);
  if (cache.size > 4) cache.delete(cache.keys().next().value!);
  return source;
}
