// A translation for whoever gives only the source: the likeliest sentence of a small beam.
import { post } from "./api";
import type { BeamNode } from "./types";

/** Tokens that mark a beginning or an end and are no part of the text. */
export const mark = (text: string): boolean => /^<(begin|end|pad)>$/.test(text);

export async function translated(run: string, text: string): Promise<string> {
  const { nodes } = await post<{ nodes: BeamNode[] }>("beam", { run, text, beams: 3, length: 48 });
  const known = new Map(nodes.map((node) => [node.id, node]));
  const ends = nodes.filter((node) => node.final);
  const best = (ends.length ? ends : nodes).reduce((a, b) => (b.total > a.total || (!ends.length && b.id > a.id) ? b : a));
  const pieces: string[] = [];
  for (let node: BeamNode | undefined = best; node; node = node.parent === null ? undefined : known.get(node.parent))
    if (!mark(node.text)) pieces.unshift(node.text);
  return pieces.join("").trim();
}
