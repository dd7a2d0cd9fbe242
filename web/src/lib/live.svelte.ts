// One run as it goes: its numbers so far, and what the server sends while it trains.
import { get, words } from "./api";
import { detail } from "./runs.svelte";
import type { Finding, Metrics, Run, Sample } from "./types";

export class Live {
  columns = $state.raw<string[]>([]);
  rows = $state.raw<(number | null)[][]>([]);
  samples = $state.raw<Sample[]>([]);
  findings = $state.raw<Finding[]>([]);
  state = $state<Run["state"]>("finished");
  failure = $state("");
  ready = $state(false);
  private stream: EventSource | null = null;
  private closed = false;

  constructor(readonly run: Run) {
    this.state = run.state;
    void this.begin();
  }

  private async begin(): Promise<void> {
    try {
      const [metrics, known] = await Promise.all([get<Metrics>(`runs/${this.run.id}/metrics?after=-1`), detail(this.run)]);
      this.take(metrics);
      this.samples = known.samples;
      this.findings = known.findings;
      this.ready = true;
      if (known.state === "training" && !this.closed) this.listen();
    } catch (error) {
      this.failure = words(error);
    }
  }

  private take({ columns, rows }: Metrics): void {
    const at = columns.indexOf("step");
    const names = [...new Set([...this.columns, ...columns])];
    const place = columns.map((name) => names.indexOf(name));
    const fresh = rows.map((row) => {
      const wide: (number | null)[] = names.map(() => null);
      row.forEach((value, i) => (wide[place[i]] = value));
      return wide;
    });
    const step = names.indexOf("step");
    const from = fresh.length ? (rows[0][at] ?? 0) : Infinity;
    // A resumed run tells its last steps again: what is newer wins.
    const kept = this.rows.filter((row) => (row[step] ?? 0) < from).map((row) => (row.length < names.length ? [...row, ...names.slice(row.length).map(() => null)] : row));
    this.columns = names;
    this.rows = [...kept, ...fresh];
  }

  private listen(): void {
    const stream = new EventSource(`/api/runs/${this.run.id}/events`);
    this.stream = stream;
    const on = (name: string, then: (data: never) => void) =>
      stream.addEventListener(name, (event) => then(JSON.parse((event as MessageEvent<string>).data) as never));
    on("metrics", (data: Metrics) => this.take(data));
    on("sample", (data: Sample) => (this.samples = [...this.samples.filter((one) => one.step !== data.step), data]));
    on("finding", (data: Finding) => (this.findings = [...this.findings.filter((one) => one.id !== data.id), data]));
    on("state", (data: { state: Run["state"] }) => {
      this.state = data.state ?? this.state;
      if (this.state !== "training") this.close();
    });
  }

  column(name: string): { steps: number[]; values: (number | null)[] } {
    const [step, at] = [this.columns.indexOf("step"), this.columns.indexOf(name)];
    if (at < 0) return { steps: [], values: [] };
    const told = this.rows.filter((row) => row[at] !== null && row[at] !== undefined);
    return { steps: told.map((row) => row[step] ?? 0), values: told.map((row) => row[at]) };
  }

  close(): void {
    this.closed = true;
    this.stream?.close();
  }
}
