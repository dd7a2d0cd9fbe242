// Light or dark theme: the system's setting until the user chooses one. Canvases redraw when `dark` changes.

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
      const stored = localStorage.getItem("regard-theme");
      if (stored === "light" || stored === "dark") this.apply(stored);
    } catch {
      // Without storage the choice lasts until the page is closed.
    }
  }

  private apply(choice: Choice): void {
    this.choice = choice;
    document.documentElement.dataset.theme = choice;
  }

  toggle(): void {
    this.apply(this.dark ? "light" : "dark");
    try {
      localStorage.setItem("regard-theme", this.choice);
    } catch {
      // As above.
    }
  }
}

export const theme = new Theme();

/** The current value of a CSS variable, for drawing on a canvas. */
export const cssVariable = (name: string): string =>
  getComputedStyle(document.documentElement).getPropertyValue(name).trim();
