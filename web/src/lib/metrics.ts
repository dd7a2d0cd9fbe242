// Curves of the Runs view: the x-axis, the unit of the loss, and smoothing.
import type { RunStream } from "./run_stream.svelte";
import { size } from "./format";

export const X_AXES = { step: "step", tokens: "tokens", time: "time in seconds", flops: "FLOPs" } as const;
export type XAxis = keyof typeof X_AXES;

export const LOSSES = ["loss", "validation_loss"];
const NAMES: Record<string, string> = { lr: "learning rate", grad_norm: "gradient norm", memory: "memory" };
export const metricName = (metric: string): string => NAMES[metric] ?? metric.replaceAll("_", " ");

/** The title of the y-axis. */
export function metricTitle(metric: string, bits: boolean): string {
  if (LOSSES.includes(metric)) return `${metricName(metric)} (${bits ? "bits per byte" : "nats per token"})`;
  return metric === "seconds" ? "time in seconds" : metricName(metric);
}

export const formatMetric = (metric: string, format: (value: number) => string) => (value: number | null | undefined) =>
  value === null || value === undefined ? "–" : metric === "memory" ? size(value) : format(value);

/** Add what is needed to plot steps as tokens, time or FLOPs: steps without a record are interpolated. */
export function xValues(stream: RunStream, axis: XAxis, steps: number[]): (number | null)[] {
  if (axis === "step") return steps;
  const known = stream.column(axis === "time" ? "seconds" : "tokens");
  const factor = axis === "flops" ? stream.run.flops_per_token : 1;
  if (!known.steps.length || !factor) return steps.map(() => null);
  let at = 0;
  return steps.map((step) => {
    while (at < known.steps.length - 1 && known.steps[at + 1] <= step) at++;
    const [left, right] = [known.steps[at], known.steps[at + 1] ?? known.steps[at]];
    const [low, high] = [known.values[at] ?? 0, known.values[at + 1] ?? known.values[at] ?? 0];
    // Before the first record the count is proportional to the step.
    if (step < left) return (factor * low * step) / left;
    return factor * (right > left ? low + ((high - low) * (step - left)) / (right - left) : low);
  });
}

/** The exponential moving average, corrected for its start as in Adam; 0 leaves the values as they are. */
export function smooth(values: (number | null)[], weight: number): (number | null)[] {
  if (!weight) return values;
  let [mean, total] = [0, 0];
  return values.map((value) => {
    if (value === null) return null;
    mean = weight * mean + (1 - weight) * value;
    total = weight * total + (1 - weight);
    return mean / total;
  });
}
