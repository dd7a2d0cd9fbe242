// The list of runs, refreshed every few seconds while the page is visible.
import { ApiError, errorMessage, get } from "./api";
import { route } from "./route.svelte";
import type { Run, RunDetail } from "./types";

class Runs {
  list = $state.raw<Run[]>([]);
  state = $state<"loading" | "ready" | "failed">("loading");
  error = $state("");
  private started = false;

  start(): void {
    if (this.started) return;
    this.started = true;
    void this.refresh();
    setInterval(() => document.visibilityState === "visible" && void this.refresh(), 5000);
  }

  async refresh(): Promise<void> {
    try {
      const { runs } = await get<{ runs: Run[] }>("runs");
      if (JSON.stringify(runs) !== JSON.stringify(this.list)) this.list = runs;
      this.state = "ready";
      this.error = "";
    } catch (error) {
      this.error = errorMessage(error);
      if (this.state === "loading" || (error instanceof ApiError && error.status === 401)) this.state = "failed";
    }
  }

  /** Find a run by name, or by id. URLs contain names, because ids change when the server restarts. */
  find(label: string | undefined): Run | undefined {
    return label ? this.list.find((run) => run.id === label || run.name === label) : undefined;
  }

  /** The run in the URL, or the newest undamaged run. */
  get current(): Run | undefined {
    return this.find(route.params.run) ?? this.list.find((run) => run.state !== "damaged");
  }
}

export const runs = new Runs();

const details = new Map<string, Promise<RunDetail>>();

/** The details of a run, cached until its step or state changes. */
export function runDetail(run: Run): Promise<RunDetail> {
  const key = `${run.id}@${run.step}@${run.state}`;
  const detail = details.get(key) ?? get<RunDetail>(`runs/${run.id}`);
  detail.catch(() => details.delete(key));
  details.set(key, detail);
  if (details.size > 24) details.delete(details.keys().next().value!);
  return detail;
}
