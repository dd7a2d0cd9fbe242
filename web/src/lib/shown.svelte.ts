// What the view in front shows, for the export menu: the view says what its data is, the menu does the rest.

class Shown {
  /** The data of the view as plain JSON, or null while there is nothing to keep. */
  data = $state.raw<(() => unknown) | null>(null);
  /** Said aloud by screen readers, once. */
  said = $state("");

  say(text: string): void {
    this.said = text;
  }
}

export const shown = new Shown();
