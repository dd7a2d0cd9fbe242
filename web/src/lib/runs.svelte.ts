// The runs of the folder, looked up again every few seconds while the page is in front.
import { ApiError, get, words } from "./api";
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
      this.error = words(error);
      if (this.state === "loading" || (error instanceof ApiError && error.status === 401)) this.state = "failed";
    }
  }

  /** Addresses name a run by its name, which lasts, or by the server's id, which does not outlive the server. */
  find(label: string | undefined): Run | undefined {
    return label ? this.list.find((run) => run.id === label || run.name === label) : undefined;
  }

  /** The run the address names, or the newest one that can be opened. */
  get current(): Run | undefined {
    return this.find(route.params.run) ?? this.list.find((run) => run.state !== "damaged");
  }
}

export const runs = new Runs();

const details = new Map<string, Promise<RunDetail>>();

/** What a run is and can do. Kept until the run moves on. */
export function detail(run: Run): Promise<RunDetail> {
  const key = `${run.id}@${run.step}@${run.state}`;
  const found = details.get(key) ?? get<RunDetail>(`runs/${run.id}`);
  found.catch(() => details.delete(key));
  details.set(key, found);
  if (details.size > 24) details.delete(details.keys().next().value!);
  return found;
}
