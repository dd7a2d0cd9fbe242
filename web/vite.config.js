import { svelte } from "@sveltejs/vite-plugin-svelte";
import { defineConfig } from "vite";

// One script and one style sheet with fixed names: `regard look` inlines both into one HTML file.
export default defineConfig({
  plugins: [svelte()],
  base: "./",
  build: {
    outDir: "../src/regard/serve/page",
    emptyOutDir: true,
    target: "es2022",
    cssCodeSplit: false,
    assetsInlineLimit: 0,
    modulePreload: false,
    rollupOptions: {
      output: {
        format: "iife",
        entryFileNames: "page.js",
        assetFileNames: (asset) => (asset.names[0]?.endsWith(".css") ? "page.css" : "[name][extname]"),
        inlineDynamicImports: true,
      },
    },
  },
});
