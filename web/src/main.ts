import "uplot/dist/uPlot.min.css";
import "./style.css";
import { mount } from "svelte";
import App from "./App.svelte";

// The script may run before the body exists (inlined in the head).
function start(): void {
  mount(App, { target: document.getElementById("page") ?? document.body });
}

if (document.readyState === "loading") document.addEventListener("DOMContentLoaded", start);
else start();
