// The visible part of a map: its top left corner in cells, and the pixels per cell.

export interface Frame {
  left: number;
  top: number;
  width: number;
  height: number;
}

/** The largest cell in pixels, so that a short text does not fill the page. */
export const MAX_CELL = 52;

export class Camera {
  x = 0;
  y = 0;
  scale = 1;
  frame: Frame = { left: 0, top: 0, width: 1, height: 1 };

  constructor(
    readonly rows: number,
    readonly columns: number,
  ) {}

  get minScale(): number {
    return Math.min(this.frame.width / this.columns, this.frame.height / this.rows, MAX_CELL);
  }

  get isFitted(): boolean {
    return this.scale <= this.minScale * 1.001;
  }

  fit(): void {
    this.scale = this.minScale;
    this.clamp();
  }

  /** Keep the map inside the frame. */
  clamp(): void {
    this.scale = Math.min(MAX_CELL, Math.max(this.minScale, this.scale));
    this.x = Math.max(0, Math.min(this.x, this.columns - this.frame.width / this.scale));
    this.y = Math.max(0, Math.min(this.y, this.rows - this.frame.height / this.scale));
  }

  /** Zoom around a point of the canvas. */
  zoom(factor: number, px = this.frame.left + this.frame.width / 2, py = this.frame.top + this.frame.height / 2): void {
    const [dx, dy] = [px - this.frame.left, py - this.frame.top];
    const [cx, cy] = [this.x + dx / this.scale, this.y + dy / this.scale];
    this.scale = Math.min(MAX_CELL, Math.max(this.minScale, this.scale * factor));
    this.x = cx - dx / this.scale;
    this.y = cy - dy / this.scale;
    this.clamp();
  }

  pan(dx: number, dy: number): void {
    this.x -= dx / this.scale;
    this.y -= dy / this.scale;
    this.clamp();
  }

  /** The cell at a point of the canvas. */
  cellAt(px: number, py: number): { query: number; key: number } | null {
    const { left, top, width, height } = this.frame;
    if (px < left || py < top || px > left + width || py > top + height) return null;
    const [key, query] = [Math.floor(this.x + (px - left) / this.scale), Math.floor(this.y + (py - top) / this.scale)];
    return key >= 0 && key < this.columns && query >= 0 && query < this.rows ? { query, key } : null;
  }

  /** Scroll a cell into view. */
  scrollTo(query: number, key: number): void {
    const [across, down] = [this.frame.width / this.scale, this.frame.height / this.scale];
    if (key < this.x) this.x = key;
    if (key + 1 > this.x + across) this.x = key + 1 - across;
    if (query < this.y) this.y = query;
    if (query + 1 > this.y + down) this.y = query + 1 - down;
    this.clamp();
  }

  px = (key: number): number => this.frame.left + (key - this.x) * this.scale;
  py = (query: number): number => this.frame.top + (query - this.y) * this.scale;
}
