// Cells of an embedded trace, computed from the vectors of its tokens as the server computes them.
import type { Cell, EncodedGrid, HeadVectors } from "./types";

const HIDDEN = "the mask hides it";
type Rows = { width: number; data: Float32Array };

function floats({ shape, data }: EncodedGrid): Rows {
  const bytes = Uint8Array.from(atob(data), (character) => character.charCodeAt(0));
  return { width: shape[1], data: new Float32Array(bytes.buffer) };
}

export class HeadCells {
  readonly keys: number;
  private grids: Record<string, Rows | undefined> = {};
  private reasons = new Map<number, string>();

  constructor(private head: HeadVectors) {
    for (const name of ["q", "k", "v", "mix", "bias", "weight", "dot"] as const) {
      const grid = head[name];
      if (grid) this.grids[name] = floats(grid);
    }
    this.keys = head.k.shape[0];
    for (const [reason, places] of Object.entries(head.hidden)) for (const place of places) this.reasons.set(place, reason);
  }

  private vector(name: string, row: number): number[] {
    const { width, data } = this.grids[name]!;
    return Array.from(data.subarray(row * width, (row + 1) * width));
  }

  private pair = (name: string, query: number, key: number) => this.grids[name]?.data[query * this.keys + key] ?? null;

  /** Everything of a cell but its output. */
  private score(query: number, key: number, visible: number) {
    const { score, scale, temperature, normalizer, rows } = this.head;
    const [q, k] = [this.vector("q", query), this.vector("k", key)];
    const mix = this.grids.mix?.data;
    const terms = q.map((x, i) => (mix ? mix[i] * Math.tanh(x + k[i]) : x * k[i]));
    const dot = this.pair("dot", query, key) ?? terms.reduce((sum, term) => sum + term, 0);
    const bias = this.pair("bias", query, key);
    const biased = dot * scale + (bias ?? 0);
    const reason = key < visible ? (this.reasons.get(query * this.keys + key) ?? null) : HIDDEN;
    const [max, sum] = rows[query];
    const exp = max === null ? null : reason ? 0 : Math.exp(biased / temperature - max);
    const weight = this.pair("weight", query, key) ?? (exp === null || !sum ? 0 : exp / sum);
    return { score, q, k, terms, dot, scale, scaled: dot * scale, bias, biased, temperature, normalizer, allowed: !reason, reason, max, exp, sum, weight };
  }

  /** The weights of a query for its first `visible` keys, and how many of these the mask shows. */
  weights(query: number, visible: number): { weights: number[]; shown: number } {
    const cells = Array.from({ length: visible }, (_, key) => this.score(query, key, visible));
    return { weights: cells.map(({ weight }) => weight), shown: cells.filter(({ reason }) => reason !== HIDDEN).length };
  }

  cell(query: number, key: number, visible: number): Cell {
    const found = this.score(query, key, visible);
    const v = this.vector("v", key);
    const output = v.map(() => 0);
    this.weights(query, visible).weights.forEach((weight, other) => {
      const { width, data } = this.grids.v!;
      for (let i = 0; i < width; i++) output[i] += weight * data[other * width + i];
    });
    return { ...found, v, contribution: v.map((x) => x * found.weight), output };
  }
}
