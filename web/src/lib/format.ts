// Formatting of numbers and tokens.
import type { Attention, Finding, Trace } from "./types";

export function short(value: number | null | undefined, digits = 3): string {
  if (value === null || value === undefined || !Number.isFinite(value)) return "–";
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (size >= 1e5 || size < 1e-3) return minus(value.toExponential(digits - 1).replace("e+", "e"));
  return minus(Number(value.toPrecision(Math.max(digits, Math.ceil(Math.log10(size + 1))))).toString());
}

/** The fewest digits of the operands, at least `digits`, with which the shown numbers give the shown result. */
export function enoughDigits(operands: number[], result: number | null, compute: (...shown: number[]) => number, digits = 4): number {
  for (let more = digits; more < 9; more++) {
    const shown = operands.map((value) => Number(short(value, more).replaceAll("−", "-")));
    if (short(compute(...shown), digits) === short(result, digits)) return more;
  }
  return 9;
}

const minus = (text: string): string => text.replace(/-/g, "−");

/** Two decimals, for columns of numbers. */
export const fixed = (value: number | null | undefined): string =>
  value === null || value === undefined || !Number.isFinite(value) ? "–" : minus(value.toFixed(2));

/** A clause with a capital letter and a full stop. */
export const sentence = (text: string | null | undefined, end = "."): string =>
  text ? text[0].toUpperCase() + text.slice(1).replace(/[.\s]*$/, "") + end : "";

/** The first step of a finding. */
export const firstStep = (finding: Finding): number | null => finding.since ?? finding.step;

export function count(value: number | null | undefined): string {
  if (value === null || value === undefined) return "–";
  if (value >= 1e9) return `${(value / 1e9).toFixed(1)} B`;
  if (value >= 1e6) return `${(value / 1e6).toFixed(1)} M`;
  return value >= 1e4 ? `${(value / 1e3).toFixed(0)} k` : value.toLocaleString("en");
}

export function size(bytes: number): string {
  const units = ["B", "KB", "MB", "GB"];
  let unit = 0;
  for (; bytes >= 1024 && unit < 3; unit++) bytes /= 1024;
  return `${bytes >= 100 || unit === 0 ? Math.round(bytes) : bytes.toFixed(1)} ${units[unit]}`;
}

export function percent(value: number | null | undefined): string {
  if (value === null || value === undefined) return "–";
  const shown = value * 100;
  if (shown >= 99.95) return value < 1 ? ">99.9%" : "100%";
  return shown > 0 && shown < 0.05 ? "<0.1%" : `${shown.toFixed(1)}%`;
}

/** A token with visible whitespace; byte-level tokenizers encode a space as Ġ, others as ▁. */
export function token(text: string | undefined, at = 0): string {
  if (text === undefined) return `#${at}`;
  if (text === "") return "∅";
  return text.replace(/[Ġ▁ ]/g, "␣").replace(/[Ċ\n]/g, "⏎").replace(/\t/g, "⇥");
}

/** The tokens along both axes of a map. In cross-attention, a row is labeled with the token that it predicts. */
export function axisTokens(trace: Trace, attention: Attention): { queries: string[]; keys: string[] } {
  const queries = attention.kind === "cross" ? trace.predicted_tokens : null;
  return {
    queries: queries ?? trace[attention.query_tokens] ?? trace.tokens,
    keys: trace[attention.key_tokens] ?? trace.tokens,
  };
}

export function formatValue(value: unknown): string {
  if (value === null || value === undefined) return "–";
  return typeof value === "object" ? JSON.stringify(value) : String(value);
}
