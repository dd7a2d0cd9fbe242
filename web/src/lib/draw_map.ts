// One head on a canvas: tiles, tokens along both sides, and the cell one points at. Only what is in sight is drawn.
import { ticks } from "d3-array";
import type { Camera } from "./camera";
import { token } from "./format";
import { ink } from "./theme.svelte";
import { SIDE, type Tiles } from "./tiles";

export interface Drawn {
  canvas: HTMLCanvasElement;
  camera: Camera;
  tiles: Tiles;
  under: HTMLCanvasElement | null;
  queries: string[];
  keys: string[];
  point: { query: number; key: number } | null;
  picked: { query: number; key: number } | null;
  dark: boolean;
  gain: number;
}

const LETTERS = 9;

function level(camera: Camera, tiles: Tiles): number {
  const cells = 1 / (camera.scale * devicePixelRatio);
  return Math.min(tiles.deepest, Math.max(0, Math.floor(Math.log2(cells) + 0.01)));
}

function layTiles({ camera, tiles, under, dark, gain }: Drawn, context: CanvasRenderingContext2D): void {
  const { frame } = camera;
  if (under) {
    context.drawImage(under, camera.px(0), camera.py(0), camera.columns * camera.scale, camera.rows * camera.scale);
  }
  const fine = level(camera, tiles);
  const places: [number, number][] = [];
  // Coarser tiles that are already here go first, so that nothing is blank while finer ones are on their way.
  for (let at = tiles.deepest; at >= fine; at--) {
    const span = SIDE << at;
    const last = [Math.min(camera.rows, camera.y + frame.height / camera.scale), Math.min(camera.columns, camera.x + frame.width / camera.scale)];
    for (let row = Math.floor(camera.y / span); row * span < last[0]; row++)
      for (let column = Math.floor(camera.x / span); column * span < last[1]; column++) {
        if (at === fine) places.push([row, column]);
        const picture = tiles.picture(at, row, column, dark, gain);
        if (!picture) continue;
        const cell = camera.scale * (1 << at);
        context.drawImage(picture, camera.px(column * span), camera.py(row * span), picture.width * cell, picture.height * cell);
      }
  }
  tiles.want(fine, places);
}

function label(context: CanvasRenderingContext2D, text: string, room: number): string {
  if (context.measureText(text).width <= room) return text;
  while (text.length > 1 && context.measureText(`${text}…`).width > room) text = text.slice(0, -1);
  return `${text}…`;
}

function writeSides({ camera, queries, keys, point, picked }: Drawn, context: CanvasRenderingContext2D): void {
  const { frame, scale } = camera;
  const [soft, strong] = [ink("--soft"), ink("--ink")];
  const lit = point ?? picked;
  const tokens = scale >= LETTERS;
  context.textBaseline = "middle";
  context.font = tokens ? `${Math.min(13, Math.max(9, scale * 0.78))}px ${ink("--mono")}` : `11px ${ink("--sans")}`;
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
    if (lit) {
      rows.push([lit.query, token(queries[lit.query], lit.query)]);
      columns.push([lit.key, token(keys[lit.key], lit.key)]);
    }
  }
  context.textAlign = "right";
  for (const [i, text] of rows) {
    const y = camera.py(i + 0.5);
    if (y < frame.top || y > frame.top + frame.height || (!tokens && lit && text === String(i) && Math.abs(i - lit.query) * scale < 13)) continue;
    context.fillStyle = lit?.query === i ? strong : soft;
    context.fillText(label(context, text, frame.left - 10), frame.left - 6, y);
  }
  for (const [i, text] of columns) {
    const x = camera.px(i + 0.5);
    if (x < frame.left || x > frame.left + frame.width || (!tokens && lit && text === String(i) && Math.abs(i - lit.key) * scale < 34)) continue;
    context.fillStyle = lit?.key === i ? strong : soft;
    context.save();
    context.translate(x, frame.top - 6);
    if (tokens) context.rotate(-Math.PI / 2);
    context.textAlign = tokens ? "left" : "center";
    context.fillText(label(context, text, tokens ? frame.top - 10 : 80), 0, tokens ? 0 : -6);
    context.restore();
  }
}

function pointOut({ camera, point, picked }: Drawn, context: CanvasRenderingContext2D): void {
  const cell = Math.max(camera.scale, 3);
  const lit = point ?? picked;
  if (lit) {
    context.strokeStyle = ink("--soft");
    context.lineWidth = 1;
    context.globalAlpha = 0.55;
    context.strokeRect(camera.frame.left, camera.py(lit.query), camera.frame.width, cell);
    context.strokeRect(camera.px(lit.key), camera.frame.top, cell, camera.frame.height);
    context.globalAlpha = 1;
  }
  context.lineWidth = 2;
  for (const one of [point, picked]) {
    if (!one) continue;
    context.strokeStyle = ink(one === picked ? "--c1" : "--ink");
    context.strokeRect(camera.px(one.key) - 1, camera.py(one.query) - 1, cell + 2, cell + 2);
  }
}

export function drawMap(drawn: Drawn): void {
  const { canvas, camera } = drawn;
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
  context.fillStyle = ink("--map");
  context.fillRect(frame.left, frame.top, frame.width, frame.height);
  layTiles(drawn, context);
  pointOut(drawn, context);
  context.restore();
  writeSides(drawn, context);
}
