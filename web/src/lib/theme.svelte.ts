// Light or dark: the system's choice until the reader makes one. Canvases redraw when `key` changes.

type Choice = "system" | "light" | "dark";

class Theme {
  choice = $state<Choice>("system");
  private system = $state(false);
  dark = $derived(this.choice === "system" ? this.system : this.choice === "dark");

  constructor() {
    const media = matchMedia("(prefers-color-scheme: dark)");
    this.system = media.matches;
    media.addEventListener("change", () => (this.system = media.matches));
    try {
      const kept = localStorage.getItem("regard-theme");
      if (kept === "light" || kept === "dark") this.take(kept);
    } catch {
      // Without storage the choice lasts as long as the page.
    }
  }

  private take(choice: Choice): void {
    this.choice = choice;
    document.documentElement.dataset.theme = choice;
  }

  turn(): void {
    this.take(this.dark ? "light" : "dark");
    try {
      localStorage.setItem("regard-theme", this.choice);
    } catch {
      // As above.
    }
  }
}

export const theme = new Theme();

/** The value of a style token now, for what is drawn on a canvas. */
export const ink = (name: string): string => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
