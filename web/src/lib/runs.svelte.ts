// The list of runs, refreshed every few seconds while the page is visible.
import { untrack } from "svelte";
import { ApiError, errorMessage, get } from "./api";
import { route } from "./route.svelte";
import type { Comparison, Passage, Run, RunDetail } from "./types";

class Runs {
  list = $state.raw<Run[]>([]);
  comparisons = $state.raw<Comparison[]>([]);
  state = $state<"loading" | "ready" | "failed">("loading");
  error = $state("");
  /** The newest step in the streams that are open, by run id. */
  private streamed = $state.raw<Record<string, number | null>>({});
  private started = false;
  /** "view/run id" of runs whose model does not support a view. */
  private unsupported = $state.raw<string[]>([]);

  start(): void {
    if (this.started) return;
    this.started = true;
    void this.refresh();
    setInterval(() => document.visibilityState === "visible" && void this.refresh(), 5000);
  }

  async refresh(): Promise<void> {
    try {
      const { runs, comparisons } = await get<{ runs: Run[]; comparisons: Comparison[] }>("runs");
      if (JSON.stringify(comparisons) !== JSON.stringify(this.comparisons)) this.comparisons = comparisons;
      if (JSON.stringify(runs) !== JSON.stringify(this.list)) this.list = runs;
      this.state = "ready";
      this.error = "";
    } catch (error) {
      this.error = errorMessage(error);
      if (this.state === "loading" || (error instanceof ApiError && error.status === 401)) this.state = "failed";
    }
  }

  /** What a stream says of a run is newer than the list. */
  update(run: Run): void {
    this.list = this.list.map((listed) => (listed.id === run.id && (run.step ?? 0) >= (listed.step ?? 0) ? run : listed));
  }

  /** A stream has read up to this step; null: it is closed. */
  follow(id: string, step: number | null): void {
    this.streamed = { ...untrack(() => this.streamed), [id]: step };
  }

  /** The newest step of a run: that of its chart, if it is open and trains. */
  step(run: Run): number | null {
    return this.streamed[run.id] ?? run.step;
  }

  /** Find a run by name, or by id. URLs contain names, because ids change when the server restarts. */
  find(label: string | undefined): Run | undefined {
    return label ? this.list.find((run) => run.id === label || run.name === label) : undefined;
  }

  /** The run in the URL; without one, the newest with a checkpoint that the view supports, or else the newest undamaged one. */
  get current(): Run | undefined {
    if (route.params.run) return this.find(route.params.run);
    const opened = this.list.filter((run) => run.state !== "damaged");
    return opened.find((run) => run.checkpoint !== null && !this.unsupported.includes(`${route.view}/${run.id}`)) ?? opened[0];
  }

  /** Do not open this view with the run unless the URL says so. */
  skip(run: Run): void {
    this.unsupported = [...this.unsupported, `${route.view}/${run.id}`];
  }

  /** Why the run in the URL cannot be shown; empty if it can. */
  get missing(): string {
    const name = route.params.run;
    return this.state === "ready" && name && !this.find(name) ? noSuchRun([name]) : "";
  }
}

export const noSuchRun = (names: string[]): string =>
  `There is no run named ${names.map((name) => `“${name}”`).join(", ")} here; it may have been renamed or removed. Choose another one.`;

export const runs = new Runs();

const details = new Map<string, Promise<RunDetail>>();

/** The details of a run, cached until its step, checkpoint or state changes. */
export function runDetail(run: Run): Promise<RunDetail> {
  const key = `${run.id}@${run.step}@${run.checkpoint}@${run.state}`;
  const detail = details.get(key) ?? get<RunDetail>(`runs/${run.id}`);
  detail.catch(() => details.delete(key));
  details.set(key, detail);
  if (details.size > 24) details.delete(details.keys().next().value!);
  return detail;
}

const passages = new Map<string, Promise<Passage>>();

/** A held-out passage of the run's data. The server reads the data for it, so it is requested once. */
export function runPassage(run: Run): Promise<Passage> {
  const passage = passages.get(run.id) ?? get<Passage>(`runs/${run.id}/passage`);
  passage.catch(() => passages.delete(run.id));
  passages.set(run.id, passage);
  return passage;
}
