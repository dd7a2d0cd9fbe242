// State that the current view shares with the frame: the data for the JSON export, and announcements.

class ViewState {
  /** Returns the data of the view as plain JSON; null while there is none. */
  exportData = $state.raw<(() => unknown) | null>(null);
  /** Text for screen readers. */
  announcement = $state("");

  announce(text: string): void {
    this.announcement = text;
  }
}

export const viewState = new ViewState();
