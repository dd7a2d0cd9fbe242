// The answers of the server, named as its API names them.

export interface Run {
  id: string;
  name: string;
  model: string | null;
  state: "training" | "finished" | "stopped" | "damaged";
  step: number | null;
  steps: number | null;
  loss: number | null;
  validation_loss: number | null;
  started: string | null;
  parameters: number | null;
  why?: string | null;
}

export interface Finding {
  id: string;
  step: number | null;
  /** Where it was first seen; `step` is where it was seen last. */
  since?: number | null;
  kind: string;
  where: string;
  what: string;
  evidence: string;
  cause: string;
  /** Options of `regard train` that mend it, or what to look at. */
  change?: string | null;
}

export interface Sample {
  step: number;
  text: string;
}

export interface RunDetail {
  id: string;
  name: string;
  config: Record<string, unknown>;
  environment: Record<string, unknown>;
  state: Run["state"];
  steps: number | null;
  checkpoints: number[];
  samples: Sample[];
  findings: Finding[];
  can: { attend: boolean; step: boolean; beam: boolean; probe: boolean; pair: boolean; why: string | null };
}

export interface Metrics {
  columns: string[];
  rows: (number | null)[][];
}

export interface Difference {
  keys: { key: string; values: unknown[]; same: boolean }[];
}

export interface Attention {
  index: number;
  name: string;
  layer: number;
  heads: number;
  queries: number;
  keys: number;
  sides: "own" | "cross";
  causal: boolean;
  exact: boolean;
  why?: string | null;
  query_side?: "tokens" | "others";
  key_side?: "tokens" | "others";
}

export interface Trace {
  trace: string;
  tokens: string[];
  others: string[] | null;
  /** What each place of the second text goes on to say. */
  predicted?: string[] | null;
  attentions: Attention[];
  loss: number | null;
}

export interface Row {
  query: number;
  weights: [number, number][];
  entropy: number | null;
  seen: number;
}

export interface Cell {
  q: number[];
  k: number[];
  terms: number[];
  dot: number | null;
  scale: number | null;
  scaled: number | null;
  bias: number | null;
  biased: number | null;
  allowed: boolean;
  why: string | null;
  max: number | null;
  exp: number | null;
  sum: number | null;
  weight: number | null;
  v: number[];
  contribution: number[];
  context: number[];
}

export interface HeadMeasure {
  attention: number;
  head: number;
  entropy: number | null;
  uniformity: number | null;
  roles: Record<string, number>;
  role: string;
}

export interface Measures {
  heads: HeadMeasure[];
}

export interface Grid {
  shape: number[];
  data: Uint8Array;
  /** Of an overview: how many attentions are in it so far. */
  ready?: number;
}

export interface Candidate {
  token: number;
  text: string;
  logit: number;
  probability: number;
  chosen_probability: number;
  kept: boolean;
}

export interface Stepped {
  tokens: string[];
  next: Candidate[];
  drawn: { token: number; text: string };
  entropy: number;
  state: { bytes: number; tokens: number; capacity: number };
}

export interface BeamNode {
  id: number | string;
  parent: number | string | null;
  text: string;
  logprob: number;
  total: number;
  alive: boolean;
  final: boolean;
}

export interface Guess {
  text: string;
  probability: number;
}

export interface Lens {
  tokens: string[];
  layers: string[];
  top: (Guess | Guess[])[][];
  rank_of_actual: (number | null)[][];
}

export interface Change {
  loss: { before: number | null; after: number | null };
  per_token: [number | null, number | null][];
}

export interface Ablated extends Change {
  text: { before: string; after: string };
}

export interface Patched extends Change {
  next: { before: Guess[]; after: Guess[] };
}

export interface Masked {
  expression: string;
  length: number;
  cells: string;
  blocks: { size: number; rows: number[][] };
  allowed: number;
  share: number;
  backend: string;
  error: null;
}

/** An expression that cannot be read: why, and at which letter, counted from 1. */
export interface Unread {
  error: string;
  position: number | null;
}

// What `regard look` puts into the file it writes: the page then asks nobody anything.
export interface Packed {
  shape: number[];
  data: string;
}

export interface Embedded {
  title?: string;
  text?: string;
  trace: Trace;
  overview: Packed;
  measures?: Measures | null;
  tiles?: Record<string, Packed>;
  rows?: Record<string, Row>;
  cells?: Record<string, Cell>;
}
