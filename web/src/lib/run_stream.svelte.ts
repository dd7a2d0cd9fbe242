// The metrics, samples and findings of one run, updated by server-sent events while it trains.
import { errorMessage, get } from "./api";
import { runDetail, runs } from "./runs.svelte";
import type { Finding, Metrics, Run, RunDetail, Sample } from "./types";

export class RunStream {
  columns = $state.raw<string[]>([]);
  rows = $state.raw<(number | null)[][]>([]);
  samples = $state.raw<Sample[]>([]);
  findings = $state.raw<Finding[]>([]);
  state = $state<Run["state"]>("finished");
  /** Recorded steps that are not among the rows. */
  left = $state(0);
  detail = $state.raw<RunDetail | null>(null);
  error = $state("");
  ready = $state(false);
  private stream: EventSource | null = null;
  private closed = false;

  constructor(readonly run: Run) {
    this.state = run.state;
    void this.load();
  }

  private async load(): Promise<void> {
    try {
      const [metrics, detail] = await Promise.all([
        get<Metrics>(`runs/${this.run.id}/metrics?after=-1`),
        runDetail(this.run),
      ]);
      this.addMetrics(metrics);
      this.left = metrics.recorded - metrics.rows.length;
      this.detail = detail;
      this.state = detail.state;
      runs.update(detail);
      this.samples = detail.samples;
      this.findings = detail.findings;
      this.ready = true;
      if (detail.state === "training" && !this.closed) this.listen();
    } catch (error) {
      this.error = errorMessage(error);
    }
  }

  private addMetrics({ columns, rows }: Metrics): void {
    const names = [...new Set([...this.columns, ...columns])];
    const target = columns.map((name) => names.indexOf(name));
    const added = rows.map((row) => {
      const wide: (number | null)[] = names.map(() => null);
      row.forEach((value, i) => (wide[target[i]] = value));
      return wide;
    });
    const step = names.indexOf("step");
    const from = added.length ? (added[0][step] ?? 0) : Infinity;
    // A resumed run repeats its last steps: the new rows replace the old ones.
    const kept = this.rows
      .filter((row) => (row[step] ?? 0) < from)
      .map((row) => [...row, ...names.slice(row.length).map(() => null)]);
    this.columns = names;
    this.rows = [...kept, ...added];
  }

  private listen(): void {
    const stream = new EventSource(`/api/runs/${this.run.id}/events`);
    this.stream = stream;
    const on = (name: string, handle: (data: never) => void) =>
      stream.addEventListener(name, (event) => handle(JSON.parse((event as MessageEvent<string>).data) as never));
    const follow = () => runs.follow(this.run.id, this.column("step").values.at(-1) ?? null);
    follow();
    on("metrics", (data: Metrics) => {
      this.addMetrics(data);
      follow();
    });
    on("sample", (data: Sample) => (this.samples = [...this.samples.filter(({ step }) => step !== data.step), data]));
    on("finding", (data: Finding) => (this.findings = [...this.findings.filter(({ id }) => id !== data.id), data]));
    on("state", (data: Run) => {
      this.state = data.state ?? this.state;
      runs.update(data);
      if (this.state !== "training") this.close();
      if (this.state !== "training" || data.checkpoint !== this.detail?.checkpoint)
        runDetail(data).then((detail) => (this.detail = detail), () => undefined);
    });
  }

  /** Whether this stream ended, or never began, while the run trains. */
  outdated(run: Run): boolean {
    return run.state === "training" && this.ready && this.state !== "training";
  }

  column(name: string): { steps: number[]; values: (number | null)[] } {
    const [step, index] = [this.columns.indexOf("step"), this.columns.indexOf(name)];
    if (index < 0) return { steps: [], values: [] };
    const rows = this.rows.filter((row) => row[index] !== null && row[index] !== undefined);
    return { steps: rows.map((row) => row[step] ?? 0), values: rows.map((row) => row[index]) };
  }

  close(): void {
    this.closed = true;
    runs.follow(this.run.id, null);
    this.stream?.close();
  }
}
