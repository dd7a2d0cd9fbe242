// The built page is kept in the repository, so that nobody needs Node to use it. This ties it to its sources:
// `write` notes the SHA-256 of every source beside the built files; `verify` says when the two have drifted apart.
import { createHash } from "node:crypto";
import { readFileSync, readdirSync, statSync, writeFileSync } from "node:fs";
import { dirname, join, relative, sep } from "node:path";
import { fileURLToPath } from "node:url";

const here = dirname(fileURLToPath(import.meta.url));
const page = join(here, "..", "src", "regard", "serve", "page");
const note = join(page, "SOURCES.sha256");
const roots = ["src", "index.html", "package.json", "package-lock.json", "svelte.config.js", "tsconfig.json", "vite.config.js"];
const limit = 400 * 1024;

function files(path) {
  if (statSync(path).isFile()) return [path];
  return readdirSync(path).flatMap((name) => files(join(path, name)));
}

const digest = (path) => createHash("sha256").update(readFileSync(path)).digest("hex");

function sums() {
  const sources = roots.flatMap((name) => files(join(here, name))).map((path) => [relative(here, path), path]);
  const built = files(page)
    .filter((path) => path !== note)
    .map((path) => [`built/${relative(page, path)}`, path]);
  return [...sources, ...built]
    .map(([name, path]) => `${digest(path)}  ${name.split(sep).join("/")}`)
    .sort((a, b) => (a.slice(66) < b.slice(66) ? -1 : 1))
    .join("\n");
}

const size = files(page).reduce((total, path) => total + statSync(path).size, 0);
if (size > limit) {
  console.error(`the built page is ${size} bytes, more than the ${limit} it may be: take something out`);
  process.exit(1);
}
if (process.argv[2] === "write") {
  writeFileSync(note, `${sums()}\n`);
  console.log(`page: ${Math.round(size / 1024)} KB`);
} else if (readFileSync(note, "utf8").trim() !== sums()) {
  console.error("src/regard/serve/page is not what web/ builds: run `make web` and commit both");
  process.exit(1);
}
