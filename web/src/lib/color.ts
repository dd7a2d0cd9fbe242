// The color maps of attention weights. A cell holds 255 * sqrt(weight), so small weights stay visible.

type Color = [number, number, number];
// Lightness is monotonic in both, so they are readable without color vision.
const LIGHT: Color[] = [[244, 242, 236], [190, 214, 235], [96, 156, 211], [29, 102, 179], [12, 44, 92]];
const DARK: Color[] = [[27, 32, 41], [28, 61, 102], [45, 112, 178], [109, 179, 255], [226, 241, 255]];

function makeTable(stops: Color[]): Uint32Array {
  const table = new Uint32Array(256);
  for (let i = 0; i < 256; i++) {
    const position = (i / 255) * (stops.length - 1);
    const low = Math.min(Math.floor(position), stops.length - 2);
    const [r, g, b] = stops[low].map((value, c) => Math.round(value + (stops[low + 1][c] - value) * (position - low)));
    table[i] = (255 << 24) | (b << 16) | (g << 8) | r;
  }
  return table;
}

const tables = { light: makeTable(LIGHT), dark: makeTable(DARK) };

/** An image of the cells, one pixel each. */
export function paint(data: Uint8Array, rows: number, columns: number, dark: boolean, gain = 1): HTMLCanvasElement {
  const canvas = document.createElement("canvas");
  paintOn(canvas, data, rows, columns, dark, gain);
  return canvas;
}

/** Draw the cells on a canvas. `gain` amplifies small weights, which are common in long texts. */
export function paintOn(
  canvas: HTMLCanvasElement,
  data: Uint8Array,
  rows: number,
  columns: number,
  dark: boolean,
  gain = 1,
): void {
  canvas.width = columns;
  canvas.height = rows;
  const context = canvas.getContext("2d")!;
  const image = context.createImageData(columns, rows);
  const pixels = new Uint32Array(image.data.buffer);
  const colors = dark ? tables.dark : tables.light;
  for (let i = 0; i < rows * columns; i++) pixels[i] = colors[Math.min(255, data[i] * gain)];
  context.putImageData(image, 0, 0);
}

function channels(value: number, dark: boolean): Color {
  const packed = (dark ? tables.dark : tables.light)[Math.round(255 * Math.min(1, Math.max(0, value)))];
  return [packed & 255, (packed >> 8) & 255, (packed >> 16) & 255];
}

/** The CSS color of a value from 0 to 1. */
export const cellColor = (value: number, dark: boolean): string => `rgb(${channels(value, dark).join(" ")})`;

/** The text color with the higher contrast on a cell: black or white (WCAG 2.2, relative luminance). */
export function textColor(value: number, dark: boolean): string {
  const [r, g, b] = channels(value, dark).map((channel) => {
    const share = channel / 255;
    return share <= 0.04045 ? share / 12.92 : ((share + 0.055) / 1.055) ** 2.4;
  });
  return 0.2126 * r + 0.7152 * g + 0.0722 * b > 0.179 ? "#000" : "#fff";
}
