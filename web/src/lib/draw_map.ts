// Draw the attention map of one head: visible tiles, token labels and the highlighted cells.
import { ticks } from "d3-array";
import type { Camera } from "./camera";
import { token } from "./format";
import { cssVariable } from "./theme.svelte";
import { SIDE, type Tiles } from "./tiles";

export interface MapDrawing {
  canvas: HTMLCanvasElement;
  camera: Camera;
  tiles: Tiles;
  overview: HTMLCanvasElement | null;
  queries: string[];
  keys: string[];
  hovered: { query: number; key: number } | null;
  selected: { query: number; key: number } | null;
  dark: boolean;
  gain: number;
}

/** Pixels per cell from which on tokens are labeled. */
const LABELED = 9;

function visibleLevel(camera: Camera, tiles: Tiles): number {
  const cells = 1 / (camera.scale * devicePixelRatio);
  return Math.min(tiles.coarsest, Math.max(0, Math.floor(Math.log2(cells) + 0.01)));
}

function drawTiles({ camera, tiles, overview, dark, gain }: MapDrawing, context: CanvasRenderingContext2D): void {
  const { frame } = camera;
  if (overview) {
    context.drawImage(overview, camera.px(0), camera.py(0), camera.columns * camera.scale, camera.rows * camera.scale);
  }
  const finest = visibleLevel(camera, tiles);
  const visible: [number, number][] = [];
  // Loaded coarser tiles are drawn first, so that nothing is blank while finer ones are loading.
  for (let at = tiles.coarsest; at >= finest; at--) {
    const span = SIDE << at;
    const last = [Math.min(camera.rows, camera.y + frame.height / camera.scale), Math.min(camera.columns, camera.x + frame.width / camera.scale)];
    for (let row = Math.floor(camera.y / span); row * span < last[0]; row++)
      for (let column = Math.floor(camera.x / span); column * span < last[1]; column++) {
        if (at === finest) visible.push([row, column]);
        const image = tiles.image(at, row, column, dark, gain);
        if (!image) continue;
        const cell = camera.scale * (1 << at);
        context.drawImage(image, camera.px(column * span), camera.py(row * span), image.width * cell, image.height * cell);
      }
  }
  tiles.request(finest, visible);
}

function truncate(context: CanvasRenderingContext2D, text: string, width: number): string {
  if (context.measureText(text).width <= width) return text;
  while (text.length > 1 && context.measureText(`${text}…`).width > width) text = text.slice(0, -1);
  return `${text}…`;
}

function drawLabels({ camera, queries, keys, hovered, selected }: MapDrawing, context: CanvasRenderingContext2D): void {
  const { frame, scale } = camera;
  const [soft, strong] = [cssVariable("--soft"), cssVariable("--ink")];
  const active = hovered ?? selected;
  const tokens = scale >= LABELED;
  context.textBaseline = "middle";
  context.font = tokens ? `${Math.min(13, Math.max(9, scale * 0.78))}px ${cssVariable("--mono")}` : `11px ${cssVariable("--sans")}`;
  const rows: [number, string][] = [];
  const columns: [number, string][] = [];
  const down = Math.min(camera.rows, Math.ceil(camera.y + frame.height / scale));
  const across = Math.min(camera.columns, Math.ceil(camera.x + frame.width / scale));
  if (tokens) {
    for (let i = Math.floor(camera.y); i < down; i++) rows.push([i, token(queries[i], i)]);
    for (let i = Math.floor(camera.x); i < across; i++) columns.push([i, token(keys[i], i)]);
  } else {
    for (const i of ticks(camera.y, down, Math.max(2, frame.height / 70))) if (Number.isInteger(i) && i < down) rows.push([i, String(i)]);
    for (const i of ticks(camera.x, across, Math.max(2, frame.width / 90))) if (Number.isInteger(i) && i < across) columns.push([i, String(i)]);
    if (active) {
      rows.push([active.query, token(queries[active.query], active.query)]);
      columns.push([active.key, token(keys[active.key], active.key)]);
    }
  }
  context.textAlign = "right";
  for (const [i, text] of rows) {
    const y = camera.py(i + 0.5);
    if (y < frame.top || y > frame.top + frame.height || (!tokens && active && text === String(i) && Math.abs(i - active.query) * scale < 13)) continue;
    context.fillStyle = active?.query === i ? strong : soft;
    context.fillText(truncate(context, text, frame.left - 10), frame.left - 6, y);
  }
  for (const [i, text] of columns) {
    const x = camera.px(i + 0.5);
    if (x < frame.left || x > frame.left + frame.width || (!tokens && active && text === String(i) && Math.abs(i - active.key) * scale < 34)) continue;
    context.fillStyle = active?.key === i ? strong : soft;
    context.save();
    context.translate(x, frame.top - 6);
    if (tokens) context.rotate(-Math.PI / 2);
    context.textAlign = tokens ? "left" : "center";
    context.fillText(truncate(context, text, tokens ? frame.top - 10 : 80), 0, tokens ? 0 : -6);
    context.restore();
  }
}

function drawHighlights({ camera, hovered, selected }: MapDrawing, context: CanvasRenderingContext2D): void {
  const cell = Math.max(camera.scale, 3);
  const active = hovered ?? selected;
  if (active) {
    context.strokeStyle = cssVariable("--soft");
    context.lineWidth = 1;
    context.globalAlpha = 0.55;
    context.strokeRect(camera.frame.left, camera.py(active.query), camera.frame.width, cell);
    context.strokeRect(camera.px(active.key), camera.frame.top, cell, camera.frame.height);
    context.globalAlpha = 1;
  }
  context.lineWidth = 2;
  for (const cellIndex of [hovered, selected]) {
    if (!cellIndex) continue;
    context.strokeStyle = cssVariable(cellIndex === selected ? "--c1" : "--ink");
    context.strokeRect(camera.px(cellIndex.key) - 1, camera.py(cellIndex.query) - 1, cell + 2, cell + 2);
  }
}

export function drawMap(drawing: MapDrawing): void {
  const { canvas, camera } = drawing;
  const context = canvas.getContext("2d")!;
  const ratio = devicePixelRatio;
  const { frame } = camera;
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  context.clearRect(0, 0, canvas.width, canvas.height);
  context.imageSmoothingEnabled = false;
  context.save();
  context.beginPath();
  context.rect(frame.left, frame.top, Math.min(frame.width, camera.columns * camera.scale), Math.min(frame.height, camera.rows * camera.scale));
  context.clip();
  context.fillStyle = cssVariable("--map");
  context.fillRect(frame.left, frame.top, frame.width, frame.height);
  drawTiles(drawing, context);
  drawHighlights(drawing, context);
  context.restore();
  drawLabels(drawing, context);
}
