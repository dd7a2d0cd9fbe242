// The colours of a map: from the ground to full ink. A cell holds 255 * sqrt(weight), so small weights stay visible.

type Colour = [number, number, number];
// Light: paper to deep blue. Dark: night to a bright sky. Both get only lighter or only darker, so that they can be
// read without telling colours apart.
const LIGHT: Colour[] = [[244, 242, 236], [190, 214, 235], [96, 156, 211], [29, 102, 179], [12, 44, 92]];
const DARK: Colour[] = [[27, 32, 41], [28, 61, 102], [45, 112, 178], [109, 179, 255], [226, 241, 255]];

function table(stops: Colour[]): Uint32Array {
  const made = new Uint32Array(256);
  for (let i = 0; i < 256; i++) {
    const at = (i / 255) * (stops.length - 1);
    const low = Math.min(Math.floor(at), stops.length - 2);
    const [r, g, b] = stops[low].map((one, c) => Math.round(one + (stops[low + 1][c] - one) * (at - low)));
    made[i] = (255 << 24) | (b << 16) | (g << 8) | r;
  }
  return made;
}

const tables = { light: table(LIGHT), dark: table(DARK) };

/** Bytes as a picture, one pixel a cell. */
export function paint(data: Uint8Array, rows: number, columns: number, dark: boolean, gain = 1): HTMLCanvasElement {
  const canvas = document.createElement("canvas");
  paintOn(canvas, data, rows, columns, dark, gain);
  return canvas;
}

/** `gain` lifts small weights, as a long text has them; what goes beyond full ink stays full. */
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
  const colours = dark ? tables.dark : tables.light;
  for (let i = 0; i < rows * columns; i++) pixels[i] = colours[Math.min(255, data[i] * gain)];
  context.putImageData(image, 0, 0);
}

export function css(value: number, dark: boolean): string {
  const packed = (dark ? tables.dark : tables.light)[Math.round(255 * Math.min(1, Math.max(0, value)))];
  return `rgb(${packed & 255} ${(packed >> 8) & 255} ${(packed >> 16) & 255})`;
}

/** Ink that can be read on a cell of that value: black or white, whichever stands out more (WCAG 2.2, relative luminance). */
export function onto(value: number, dark: boolean): string {
  const packed = (dark ? tables.dark : tables.light)[Math.round(255 * Math.min(1, Math.max(0, value)))];
  const [r, g, b] = [packed & 255, (packed >> 8) & 255, (packed >> 16) & 255].map((one) => {
    const share = one / 255;
    return share <= 0.04045 ? share / 12.92 : ((share + 0.055) / 1.055) ** 2.4;
  });
  return 0.2126 * r + 0.7152 * g + 0.0722 * b > 0.179 ? "#000" : "#fff";
}
