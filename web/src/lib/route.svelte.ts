// The URL fragment holds the state of the page: the view and its parameters.

export const VIEWS = ["runs", "attention", "sampling", "probes", "masks"] as const;
export type View = (typeof VIEWS)[number];
type Params = Record<string, string>;

// Parameters that are kept when the view changes.
const SHARED = ["run", "text", "target", "checkpoint"];

function parse(hash: string): { view: View; params: Params } {
  const [path, query] = hash.replace(/^#\/?/, "").split("?", 2);
  const view = VIEWS.find((name) => name === path) ?? "runs";
  return { view, params: Object.fromEntries(new URLSearchParams(query ?? "")) };
}

class Route {
  view = $state<View>("runs");
  params = $state<Params>({});

  constructor() {
    this.read();
    addEventListener("hashchange", () => this.read());
  }

  private read(): void {
    const { view, params } = parse(location.hash);
    this.view = view;
    this.params = params;
  }

  /** The URL of a view; the shared parameters are kept. */
  href(view: View, extra: Params = {}): string {
    // Another run has other checkpoints.
    const other = extra.run !== undefined && extra.run !== this.params.run;
    const shared = SHARED.filter((key) => this.params[key] && !(other && key === "checkpoint"));
    const kept = Object.fromEntries(shared.map((key) => [key, this.params[key]]));
    const query = new URLSearchParams({ ...kept, ...extra }).toString();
    return `#/${view}${query ? `?${query}` : ""}`;
  }

  /** Change parameters of this view; null removes one. `push` adds an entry to the browser history. */
  set(changes: Record<string, string | number | null | undefined>, push = false): void {
    const next: Params = { ...this.params };
    for (const [key, value] of Object.entries(changes)) {
      if (value === null || value === undefined || value === "") delete next[key];
      else next[key] = String(value);
    }
    if (JSON.stringify(next) === JSON.stringify(this.params)) return;
    this.params = next;
    const query = new URLSearchParams(next).toString();
    const url = `#/${this.view}${query ? `?${query}` : ""}`;
    try {
      if (push) history.pushState(null, "", url);
      else history.replaceState(null, "", url);
    } catch {
      // In a notebook frame the URL cannot be changed; the page works without it.
    }
  }

  go(view: View, extra: Params = {}): void {
    const url = this.href(view, extra);
    try {
      history.pushState(null, "", url);
    } catch {
      // As above.
    }
    const { params } = parse(url);
    this.view = view;
    this.params = params;
  }

  number(key: string): number | null {
    const value = Number(this.params[key]);
    return this.params[key] !== undefined && Number.isInteger(value) && value >= 0 ? value : null;
  }
}

addEventListener("popstate", () => dispatchEvent(new HashChangeEvent("hashchange")));
export const route = new Route();
