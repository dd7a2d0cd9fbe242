// Translate a source with a small beam search, for a request without a target text.
import { post } from "./api";
import type { BeamNode } from "./types";

/** True for special tokens, which are not part of the text. */
export const isSpecialToken = (text: string): boolean => /^<(begin|end|pad)>$/.test(text);

export async function translate(run: string, text: string, checkpoint: number | null): Promise<string> {
  const { nodes } = await post<{ nodes: BeamNode[] }>("beam", { run, text, checkpoint, beams: 3, length: 48 });
  const byId = new Map(nodes.map((node) => [node.id, node]));
  const finished = nodes.filter((node) => node.finished);
  const candidates = finished.length ? finished : nodes;
  const best = candidates.reduce((a, b) => (b.score > a.score || (!finished.length && b.id > a.id) ? b : a));
  const pieces: string[] = [];
  for (let node: BeamNode | undefined = best; node; node = node.parent === null ? undefined : byId.get(node.parent))
    if (!isSpecialToken(node.text)) pieces.unshift(node.text);
  return pieces.join("").trim();
}
