// The responses of the server, with the field names of its API.

export interface Run {
  id: string;
  name: string;
  model: string | null;
  state: "training" | "finished" | "stopped" | "damaged";
  step: number | null;
  total_steps: number | null;
  loss: number | null;
  validation_loss: number | null;
  started: string | null;
  parameters: number | null;
  /** Operations of the forward and backward pass of one token. */
  flops_per_token: number | null;
  /** The step of the newest checkpoint. */
  checkpoint: number | null;
  tags: string[];
  note: string;
  /** Why a damaged run cannot be opened. */
  error: string | null;
}

export interface Finding {
  id: string;
  step: number | null;
  /** The first step of the finding; `step` is the last one. */
  since?: number | null;
  kind: string;
  where: string;
  what: string;
  evidence: string;
  cause: string;
  /** The options of `regard train` that fix it, or what to check. */
  change?: string | null;
}

/** A page that `regard compare` has written. */
export interface Comparison {
  id: string;
  name: string;
}

export interface Sample {
  step: number;
  text: string;
}

export interface RunDetail extends Run {
  config: Record<string, unknown>;
  environment: Record<string, unknown>;
  checkpoints: number[];
  /** Why checkpoints are damaged: they are not used. */
  damaged: string[];
  samples: Sample[];
  findings: Finding[];
  /** Whether the run has a report.html. */
  report: boolean;
  /** A hash of the tokenizer: losses per token compare only between runs with the same one. */
  tokenizer: string | null;
  capabilities: {
    attention: boolean;
    sampling: boolean;
    beam_search: boolean;
    probes: boolean;
    translation: boolean;
    reason: string | null;
  };
}

/** A text of the run's data that the model was not trained on, if `held_out`. */
export interface Passage {
  text: string;
  target: string | null;
  held_out: boolean;
  /** Bytes per predicted token of the validation part; null for other data than texts. */
  bytes_per_token: number | null;
}

export interface Metrics {
  /** How many steps have a record; the rows may be evenly spaced ones of them. */
  recorded: number;
  columns: string[];
  rows: (number | null)[][];
}

export interface Difference {
  keys: { key: string; values: unknown[] }[];
}

export interface Attention {
  index: number;
  name: string;
  layer: number;
  /** For example "decoder layer 1, cross" and "d1×". */
  layer_name: string;
  layer_short: string;
  heads: number;
  queries: number;
  keys: number;
  kind: "self" | "cross";
  causal: boolean;
  exact: boolean;
  /** Why the map is not exact. */
  reason: string | null;
  /** Why a weight cannot be computed step by step. */
  not_stepwise: string | null;
  query_tokens: "tokens" | "target_tokens";
  key_tokens: "tokens" | "target_tokens";
}

export interface Trace {
  id: string;
  tokens: string[];
  target_tokens: string[] | null;
  /** The token that each position of the target predicts. */
  predicted_tokens: string[] | null;
  attentions: Attention[];
  loss: number | null;
}

export interface Row {
  query: number;
  weights: [number, number][];
  entropy: number | null;
  visible_keys: number;
}

export interface Cell {
  score: "dot" | "general" | "additive";
  q: number[];
  k: number[];
  terms: number[];
  dot: number | null;
  scale: number | null;
  scaled: number | null;
  bias: number | null;
  biased: number | null;
  /** The biased score is divided by it. */
  temperature: number;
  /** The class of the normalizer. */
  normalizer: string;
  allowed: boolean;
  reason: string | null;
  max: number | null;
  exp: number | null;
  sum: number | null;
  weight: number | null;
  v: number[];
  contribution: number[];
  output: number[];
}

export interface HeadMeasure {
  attention: number;
  head: number;
  entropy: number | null;
  uniformity: number | null;
  roles: Record<string, number | null>;
  role: string;
  /** The increase of this text's loss in nats per token without the head ("head"), or without one kind of key. */
  effects?: Record<string, number>;
}

export interface Measures {
  heads: HeadMeasure[];
}

export interface Grid {
  shape: number[];
  data: Uint8Array;
  /** In an overview: the number of complete attentions. */
  ready?: number;
}

export interface Candidate {
  token: number;
  text: string;
  logit: number;
  probability: number;
  /** The probability after temperature, top-k and top-p. */
  sampling_probability: number;
  kept: boolean;
}

export interface StepResult {
  tokens: string[];
  candidates: Candidate[];
  sampled: { token: number; text: string };
  entropy: number;
  /** A state that does not grow with the text has no capacity. */
  cache: { bytes: number; tokens: number; capacity: number | null };
}

export interface BeamNode {
  id: number | string;
  parent: number | string | null;
  text: string;
  logprob: number;
  score: number;
  alive: boolean;
  finished: boolean;
}

export interface Prediction {
  text: string;
  probability: number;
}

export interface Lens {
  tokens: string[];
  layers: string[];
  top: Prediction[][];
  target_rank: (number | null)[][];
}

export interface Intervention {
  loss: { before: number | null; after: number | null };
  per_token: [number | null, number | null][];
}

export interface AblationResult extends Intervention {
  text: { before: string | null; after: string | null };
}

export interface PatchResult extends Intervention {
  next: { before: Prediction[]; after: Prediction[] };
}

/** Norms of the residual stream and of what each part of a layer adds to it, by token. */
export interface ResidualStream {
  tokens: string[];
  /** The norm before the first layer and after each one. */
  residual: number[][];
  parts: { layer: number; kind: string; norm: number[]; effect: number | null }[];
}

export interface MaskDescription {
  expression: string;
  length: number;
  cells: string;
  blocks: { size: number; rows: number[][] };
  allowed: number;
  density: number;
  backend: string;
  error: null;
}

/** An invalid expression: the message, and the 1-based position of the error. */
export interface MaskError {
  error: string;
  position: number | null;
}

// The data in a file written by `regard look`; the page then sends no requests.
export interface EncodedGrid {
  shape: number[];
  data: string;
}

export interface EmbeddedTrace {
  title?: string;
  text?: string;
  /** The URL of a picture of the array that the model reads. */
  picture?: string;
  trace: Trace;
  overview: EncodedGrid;
  measures?: Measures | null;
  tiles?: Record<string, EncodedGrid>;
  rows?: Record<string, Row>;
  cells?: Record<string, HeadVectors>;
}

/** What the cells of one head are computed from; the numbers are float32 in base64. */
export interface HeadVectors {
  score: Cell["score"];
  normalizer: string;
  scale: number;
  temperature: number;
  q: EncodedGrid;
  k: EncodedGrid;
  v: EncodedGrid;
  /** Only for additive scores, whose terms are mix * tanh(q + k). */
  mix?: EncodedGrid;
  bias?: EncodedGrid;
  weight?: EncodedGrid;
  dot?: EncodedGrid;
  /** The maximum and the sum of the softmax of each query. */
  rows: [number | null, number | null][];
  /** The cells (query * keys + key) that have no weight, by reason. */
  hidden: Record<string, number[]>;
}
