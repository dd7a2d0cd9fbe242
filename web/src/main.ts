import "uplot/dist/uPlot.min.css";
import "./style.css";
import { mount } from "svelte";
import App from "./App.svelte";

// The script may run before the body is there (inlined in the head): wait for it.
function begin(): void {
  mount(App, { target: document.getElementById("page") ?? document.body });
}

if (document.readyState === "loading") document.addEventListener("DOMContentLoaded", begin);
else begin();
