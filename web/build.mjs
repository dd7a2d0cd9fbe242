// The built page is in the repository, so that using it does not require Node. `write` stores the SHA-256 of all source
// and built files; `verify` fails if a file has changed since.
import { createHash } from "node:crypto";
import { readFileSync, readdirSync, statSync, writeFileSync } from "node:fs";
import { dirname, join, relative, sep } from "node:path";
import { fileURLToPath } from "node:url";

const here = dirname(fileURLToPath(import.meta.url));
const page = join(here, "..", "src", "regard", "serve", "page");
const manifest = join(page, "SOURCES.sha256");
const roots = ["src", "index.html", "package.json", "package-lock.json", "svelte.config.js", "tsconfig.json", "vite.config.js"];
const limit = 400 * 1024;

function files(path) {
  if (statSync(path).isFile()) return [path];
  return readdirSync(path).flatMap((name) => files(join(path, name)));
}

const digest = (path) => createHash("sha256").update(readFileSync(path)).digest("hex");

function checksums() {
  const sources = roots.flatMap((name) => files(join(here, name))).map((path) => [relative(here, path), path]);
  const built = files(page)
    .filter((path) => path !== manifest)
    .map((path) => [`built/${relative(page, path)}`, path]);
  return [...sources, ...built]
    .map(([name, path]) => `${digest(path)}  ${name.split(sep).join("/")}`)
    .sort((a, b) => (a.slice(66) < b.slice(66) ? -1 : 1))
    .join("\n");
}

const size = files(page).reduce((total, path) => total + statSync(path).size, 0);
if (size > limit) {
  console.error(`the built page has ${size} bytes; the limit is ${limit}: reduce it`);
  process.exit(1);
}
if (process.argv[2] === "write") {
  writeFileSync(manifest, `${checksums()}\n`);
  console.log(`page: ${Math.round(size / 1024)} KB`);
} else if (readFileSync(manifest, "utf8").trim() !== checksums()) {
  console.error("src/regard/serve/page does not match web/: run `make web` and commit both");
  process.exit(1);
}
