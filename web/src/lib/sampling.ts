// The sampler of `regard generate`, computed in the page so that a slider updates the bars immediately.
import type { Candidate } from "./types";

export interface SamplingSettings {
  temperature: number;
  top_k: number | null;
  top_p: number | null;
}

export interface SamplingProbability {
  probability: number;
  kept: boolean;
}

/** Probabilities after temperature, top-k and top-p (Holtzman et al. 2020). Exact if the candidates are the whole
 * vocabulary or top-k selects among them; otherwise the unlisted tokens are approximated until the server responds. */
export function samplingProbabilities(candidates: Candidate[], settings: SamplingSettings): SamplingProbability[] {
  if (!candidates.length) return [];
  if (settings.temperature <= 0) return candidates.map((_, i) => ({ probability: i === 0 ? 1 : 0, kept: i === 0 }));
  const top = candidates[0].logit;
  const weights = candidates.map((candidate) => Math.exp((candidate.logit - top) / settings.temperature));
  const listed = candidates.reduce((sum, candidate) => sum + candidate.probability, 0);
  const k = settings.top_k ?? Infinity;
  // The unlisted probability mass, as tokens with the probability of the last candidate.
  const last = candidates[candidates.length - 1];
  const unlisted = last.probability > 0 ? Math.max(0, 1 - listed) / last.probability : 0;
  const rest = k <= candidates.length ? 0 : unlisted * weights[weights.length - 1];
  const total = weights.slice(0, Math.min(k, candidates.length)).reduce((sum, weight) => sum + weight, 0) + rest;
  let before = 0;
  const kept = weights.map((weight, i) => {
    const keep = i < k && (settings.top_p === null || i === 0 || before / total < settings.top_p);
    before += weight;
    return keep;
  });
  const complete = kept.every((keep) => keep) && k > candidates.length;
  const mass = weights.reduce((sum, weight, i) => sum + (kept[i] ? weight : 0), 0) + (complete ? rest : 0);
  return weights.map((weight, i) => ({ probability: kept[i] ? weight / mass : 0, kept: kept[i] }));
}
