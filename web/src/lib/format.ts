// Numbers and tokens as a person reads them.
import type { Attention, Finding, Trace } from "./types";

export function short(value: number | null | undefined, digits = 3): string {
  if (value === null || value === undefined || !Number.isFinite(value)) return "–";
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (size >= 1e5 || size < 1e-3) return minus(value.toExponential(digits - 1).replace("e+", "e"));
  return minus(Number(value.toPrecision(Math.max(digits, Math.ceil(Math.log10(size + 1))))).toString());
}

const minus = (text: string): string => text.replace(/-/g, "−");

/** Two decimals, for numbers that stand below each other. */
export const fixed = (value: number | null | undefined): string =>
  value === null || value === undefined || !Number.isFinite(value) ? "–" : minus(value.toFixed(2));

/** A clause as a sentence. */
export const sentence = (text: string | null | undefined, end = "."): string =>
  text ? text[0].toUpperCase() + text.slice(1).replace(/[.\s]*$/, "") + end : "";

/** The step at which something was first found. */
export const seen = (finding: Finding): number | null => finding.since ?? finding.step;

export function count(value: number | null | undefined): string {
  if (value === null || value === undefined) return "–";
  if (value >= 1e9) return `${(value / 1e9).toFixed(1)} B`;
  if (value >= 1e6) return `${(value / 1e6).toFixed(1)} M`;
  return value >= 1e4 ? `${(value / 1e3).toFixed(0)} k` : value.toLocaleString("en");
}

export function size(bytes: number): string {
  const units = ["B", "KB", "MB", "GB"];
  let at = 0;
  for (; bytes >= 1024 && at < 3; at++) bytes /= 1024;
  return `${bytes >= 100 || at === 0 ? Math.round(bytes) : bytes.toFixed(1)} ${units[at]}`;
}

export function percent(value: number | null | undefined): string {
  if (value === null || value === undefined) return "–";
  const shown = value * 100;
  if (shown >= 99.95 && value < 1) return ">99.9%";
  if (shown > 0 && shown < 0.05) return "<0.1%";
  return `${shown >= 10 ? shown.toFixed(shown >= 99.5 ? 0 : 1) : shown.toFixed(1)}%`;
}

/** A token with its blanks made visible; byte-level tokenizers write a blank as Ġ, others as ▁. */
export function token(text: string | undefined, at = 0): string {
  if (text === undefined) return `#${at}`;
  if (text === "") return "∅";
  return text.replace(/[Ġ▁ ]/g, "␣").replace(/[Ċ\n]/g, "⏎").replace(/\t/g, "⇥");
}

/** Which tokens lie along the two sides of a map. Where one text looks at the other, a row bears the word it writes. */
export function sides(trace: Trace, attention: Attention): { queries: string[]; keys: string[] } {
  const { tokens, others } = trace;
  if (!others) return { queries: tokens, keys: tokens };
  if (attention.sides === "cross" && trace.predicted) return { queries: trace.predicted, keys: tokens };
  if (attention.query_side && attention.key_side)
    return { queries: trace[attention.query_side] ?? tokens, keys: trace[attention.key_side] ?? tokens };
  if (attention.sides === "cross") return { queries: others, keys: tokens };
  const own = /decod|target/i.test(attention.name) || attention.queries !== tokens.length ? others : tokens;
  return { queries: own, keys: own };
}

/** Where two stacks are, a layer's number needs its stack: encoder or decoder. */
const stack = (attention: Attention): string => /^(encoder|decoder)\b/.exec(attention.name)?.[1] ?? "";

export function heading(attention: Attention): string {
  return `${stack(attention)} layer ${attention.layer + 1}${attention.sides === "cross" ? ", cross" : ""}`.trim();
}

export const brief = (attention: Attention): string =>
  `${stack(attention).slice(0, 1)}${attention.layer + 1}${attention.sides === "cross" ? "×" : ""}`;

export function plain(value: unknown): string {
  if (value === null || value === undefined) return "–";
  return typeof value === "object" ? JSON.stringify(value) : String(value);
}
