// The sampler of `regard generate`, worked out here so that a slider moves the bars at once.
import type { Candidate } from "./types";

export interface Setting {
  temperature: number;
  top_k: number | null;
  top_p: number | null;
}

export interface Chance {
  probability: number;
  kept: boolean;
}

/** Chances after temperature, then top-k, then top-p (Holtzman et al. 2020). Exact where the candidates are all there is
 * or top-k cuts within them; elsewhere the part not listed is scaled as one piece, and the server's answer follows. */
export function chances(next: Candidate[], setting: Setting): Chance[] {
  if (!next.length) return [];
  if (setting.temperature <= 0) return next.map((_, i) => ({ probability: i === 0 ? 1 : 0, kept: i === 0 }));
  const top = next[0].logit;
  const weights = next.map((one) => Math.exp((one.logit - top) / setting.temperature));
  const listed = next.reduce((sum, one) => sum + one.probability, 0);
  const k = setting.top_k ?? Infinity;
  // What is not listed, brought to the weights' scale: its share at temperature 1, spread over pieces like the last one.
  const last = next[next.length - 1];
  const pieces = last.probability > 0 ? Math.max(0, 1 - listed) / last.probability : 0;
  const rest = k <= next.length ? 0 : pieces * weights[weights.length - 1];
  const total = weights.slice(0, Math.min(k, next.length)).reduce((sum, one) => sum + one, 0) + rest;
  let before = 0;
  const kept = weights.map((weight, i) => {
    const keep = i < k && (setting.top_p === null || i === 0 || before / total < setting.top_p);
    before += weight;
    return keep;
  });
  const whole = kept.every((one) => one) && k > next.length;
  const mass = weights.reduce((sum, weight, i) => sum + (kept[i] ? weight : 0), 0) + (whole ? rest : 0);
  return weights.map((weight, i) => ({ probability: kept[i] ? weight / mass : 0, kept: kept[i] }));
}
