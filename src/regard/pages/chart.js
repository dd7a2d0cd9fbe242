// Charts: the values under the pointer, and zoom by dragging (double click: back). Maps: the tokens and weight of a cell.
(() => {
  const tip = document.createElement("div");
  tip.className = "tip";
  document.body.append(tip);
  const show = (event, lines) => {
    tip.replaceChildren(...lines.map((line) => Object.assign(document.createElement("div"), { textContent: line })));
    tip.style.display = "block";
    tip.style.left = `${Math.min(event.clientX + 14, innerWidth - tip.offsetWidth - 8)}px`;
    tip.style.top = `${Math.min(event.clientY + 14, innerHeight - tip.offsetHeight - 8)}px`;
  };
  const hide = () => (tip.style.display = "none");
  const named = (svg) => {  // a title element would cover the values
    svg.setAttribute("aria-label", svg.querySelector("title").textContent);
    svg.querySelector("title").remove();
  };
  const number = (value) => (Math.abs(value) >= 1e4 ? Math.round(value).toLocaleString("en") : String(+value.toPrecision(4)));
  const within = (svg, event) => new DOMPoint(event.clientX, event.clientY).matrixTransform(svg.getScreenCTM().inverse());
  const pixels = (path) => path.getAttribute("d").match(/[-\d.]+ [-\d.]+/g).map((pair) => pair.split(" ").map(Number));

  for (const svg of document.querySelectorAll("svg.chart[data-plot]")) {
    named(svg);
    const [x0, x1, left, right, low, high, bottom, top, log] = JSON.parse(svg.dataset.plot);
    const whole = [left, right, top, bottom];
    let view = whole;  // the visible part, in the pixels of the whole plot
    const lines = [...svg.querySelectorAll("path.line, path.band")].map((path) => ({ path, points: pixels(path) }));
    const dots = [...svg.querySelectorAll("circle")].map((dot) => ({ dot, at: [+dot.getAttribute("cx"), +dot.getAttribute("cy")] }));
    const valueX = (px) => x0 + ((px - left) / (right - left)) * (x1 - x0);
    const valueY = (py) => {
      const share = (bottom - py) / (bottom - top);
      return log ? low * (high / low) ** share : low + share * (high - low);
    };
    const place = ([px, py]) => [
      left + ((px - view[0]) / (view[1] - view[0])) * (right - left),
      top + ((py - view[2]) / (view[3] - view[2])) * (bottom - top),
    ];
    const back = (px, from, to, begin, end) => begin + ((px - from) / (to - from)) * (end - begin);
    const visible = (points) => points.filter(([px]) => px >= view[0] && px <= view[1]);
    const edge = (points, px) => {  // the point of a line at the edge of the view
      const i = points.findIndex((point, i) => i > 0 && points[i - 1][0] < px && px < point[0]);
      if (i < 0) return [];
      return [[px, back(px, points[i - 1][0], points[i][0], points[i - 1][1], points[i][1])]];
    };
    const cut = (points) => [...edge(points, view[0]), ...visible(points), ...edge(points, view[1])];
    const draw = () => {
      for (const { path, points } of lines) {
        const shown = path.classList.contains("band") ? visible(points) : cut(points);
        const d = shown.map((point) => place(point).map((value) => value.toFixed(1)).join(" ")).join("L");
        path.setAttribute("d", d ? `M${d}${path.classList.contains("band") ? "Z" : ""}` : "");
      }
      for (const { dot, at } of dots) {
        const [cx, cy] = place(at);
        dot.setAttribute("cx", cx);
        dot.setAttribute("cy", cy);
        dot.style.display = visible([at]).length ? "" : "none";
      }
      for (const label of svg.querySelectorAll("text.x, text.y")) {
        label.dataset.first ??= label.textContent;
        const across = label.classList.contains("x");
        const [px, py] = [+label.dataset.at, +label.dataset.at];
        const value = across ? valueX(back(px, left, right, view[0], view[1])) : valueY(back(py, top, bottom, view[2], view[3]));
        label.textContent = view === whole ? label.dataset.first : number(value);
      }
    };
    const box = svg.appendChild(document.createElementNS(svg.namespaceURI, "rect"));
    box.setAttribute("class", "select");
    const select = (begin, end) => {
      box.setAttribute("x", Math.min(begin, end));
      box.setAttribute("y", top);
      box.setAttribute("width", Math.max(1, Math.abs(end - begin)));
      box.setAttribute("height", bottom - top);
      box.style.display = "block";
    };
    const clamp = (px) => Math.min(right, Math.max(left, px));
    let from = null;
    svg.addEventListener("pointerdown", (event) => {
      from = clamp(within(svg, event).x);
      event.preventDefault();
    });
    svg.addEventListener("pointermove", (event) => {
      const px = clamp(within(svg, event).x);
      select(from ?? px, px);
      const at = back(px, left, right, view[0], view[1]);
      const found = lines.filter(({ path }) => path.dataset.name && !path.classList.contains("faint")).flatMap(({ path, points }) => {
        const shown = visible(points);
        if (!shown.length) return [];
        const [near, y] = shown.reduce((best, point) => (Math.abs(point[0] - at) < Math.abs(best[0] - at) ? point : best));
        return [[near, `${path.dataset.name}: ${number(valueY(y))}`]];
      });
      const nearest = found.reduce((best, [px]) => (Math.abs(px - at) < Math.abs(best - at) ? px : best), Infinity);
      if (found.length) show(event, [`${svg.dataset.x} ${number(valueX(nearest))}`, ...found.slice(0, 12).map(([, line]) => line)]);
    });
    svg.addEventListener("pointerup", (event) => {
      const to = clamp(within(svg, event).x);
      if (from !== null && Math.abs(to - from) > 8) {
        const [begin, end] = [from, to].sort((a, b) => a - b).map((px) => back(px, left, right, view[0], view[1]));
        view = [begin, end, top, bottom];
        const heights = lines.flatMap(({ points }) => cut(points).map(([, py]) => py));
        const [upper, lower] = [Math.min(...heights), Math.max(...heights)];
        const margin = Math.max(0.5, 0.05 * (lower - upper));
        view = heights.length ? [begin, end, upper - margin, lower + margin] : whole;
        draw();
      }
      from = null;
      box.style.display = "none";
    });
    svg.addEventListener("dblclick", () => {
      view = whole;
      draw();
    });
    svg.addEventListener("pointerleave", () => {
      from = null;
      box.style.display = "none";
      hide();
    });
  }

  const grays = new Map();
  const gray = (name) => {
    if (!grays.has(name)) {
      grays.set(name, null);
      const image = new Image();
      image.onload = () => {
        const canvas = Object.assign(document.createElement("canvas"), { width: image.width, height: image.height });
        const context = canvas.getContext("2d");
        context.drawImage(image, 0, 0);
        grays.set(name, context.getImageData(0, 0, image.width, image.height).data);
      };
      image.src = document.querySelector(`mask[id="${name}"] image`).getAttribute("href");
    }
    return grays.get(name);
  };
  for (const svg of document.querySelectorAll("svg.map[data-map]")) {
    const tokens = JSON.parse(svg.closest("[data-tokens]").dataset.tokens);
    named(svg);
    svg.addEventListener("pointermove", (event) => {
      const ink = svg.querySelector(".ink").getBBox();
      const { x, y } = within(svg, event);
      const [query, key] = [(y - ink.y) / ink.height, (x - ink.x) / ink.width].map((share) => Math.floor(share * tokens.length));
      if (query < 0 || key < 0 || query >= tokens.length || key >= tokens.length) return hide();
      const level = gray(svg.dataset.map)?.[4 * (query * tokens.length + key)];
      const weight = level === undefined ? [] : [`weight ${(level / 255) ** 2 < 0.001 ? "below 0.001" : ((level / 255) ** 2).toFixed(3)}`];
      show(event, [`query ${query + 1}: ${JSON.stringify(tokens[query])}`, `key ${key + 1}: ${JSON.stringify(tokens[key])}`, ...weight]);
    });
    svg.addEventListener("pointerleave", hide);
  }
})();
