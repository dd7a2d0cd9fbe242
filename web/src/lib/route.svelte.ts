// Every state of the page is an address: the part after # names the view and what it shows.

export const VIEWS = ["runs", "attend", "step", "probe", "masks"] as const;
export type View = (typeof VIEWS)[number];
type Params = Record<string, string>;

// What goes along when one turns from one view to another: the run and the text one is looking at.
const SHARED = ["run", "text", "other"];

function parse(hash: string): { view: View; params: Params } {
  const [path, query] = hash.replace(/^#\/?/, "").split("?", 2);
  const view = VIEWS.find((one) => one === path) ?? "runs";
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

  /** The address of a view; what one looks at is kept. */
  href(view: View, extra: Params = {}): string {
    const kept = Object.fromEntries(SHARED.filter((key) => this.params[key]).map((key) => [key, this.params[key]]));
    const query = new URLSearchParams({ ...kept, ...extra }).toString();
    return `#/${view}${query ? `?${query}` : ""}`;
  }

  /** Change what this view shows; null takes a key away. A step worth going back to is `push`ed. */
  set(changes: Record<string, string | number | null | undefined>, push = false): void {
    const next: Params = { ...this.params };
    for (const [key, value] of Object.entries(changes)) {
      if (value === null || value === undefined || value === "") delete next[key];
      else next[key] = String(value);
    }
    if (JSON.stringify(next) === JSON.stringify(this.params)) return;
    this.params = next;
    const query = new URLSearchParams(next).toString();
    const address = `#/${this.view}${query ? `?${query}` : ""}`;
    try {
      if (push) history.pushState(null, "", address);
      else history.replaceState(null, "", address);
    } catch {
      // Inside a notebook's frame there is no address to change; the page works without one.
    }
  }

  go(view: View, extra: Params = {}): void {
    const address = this.href(view, extra);
    try {
      history.pushState(null, "", address);
    } catch {
      // As above.
    }
    const { params } = parse(address);
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
