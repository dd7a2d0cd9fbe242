// Export a part of the page as SVG: boxes, text, canvases and drawings are copied from the browser's layout with plain
// attributes, so that the file looks the same everywhere. A PNG is that SVG, rasterized.

const SHAPE_STYLES = ["fill", "stroke", "stroke-width", "stroke-dasharray", "opacity", "fill-opacity", "stroke-opacity", "paint-order"];
const TEXT_STYLES = ["font-size", "font-family", "font-weight", "text-anchor", "dominant-baseline"];
const TRANSPARENT = "rgba(0, 0, 0, 0)";

const escape = (text: string): string =>
  text.replace(/[&<>"]/g, (c) => ({ "&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;" })[c]!);

class SvgWriter {
  parts: string[] = [];
  private clips = 0;

  constructor(private origin: DOMRect) {}

  private attributes(rect: DOMRect): string {
    const [x, y] = [rect.left - this.origin.left, rect.top - this.origin.top];
    return `x="${x.toFixed(1)}" y="${y.toFixed(1)}" width="${rect.width.toFixed(1)}" height="${rect.height.toFixed(1)}"`;
  }

  private addBox(rect: DOMRect, style: CSSStyleDeclaration): void {
    const fill = style.backgroundColor;
    const radius = Math.min(parseFloat(style.borderTopLeftRadius) || 0, rect.height / 2, rect.width / 2);
    const line = parseFloat(style.borderTopWidth) || 0;
    const even = line > 0 && style.borderTopWidth === style.borderBottomWidth && style.borderTopStyle !== "none";
    if (fill !== TRANSPARENT || even) {
      const edge = even ? ` stroke="${style.borderTopColor}" stroke-width="${line}"` : "";
      this.parts.push(`<rect ${this.attributes(rect)} rx="${radius}" fill="${fill === TRANSPARENT ? "none" : fill}"${edge}/>`);
    }
    const underline = parseFloat(style.borderBottomWidth) || 0;
    if (!even && underline > 0 && style.borderBottomStyle !== "none") {
      const foot = new DOMRect(rect.left, rect.bottom - underline, rect.width, underline);
      this.parts.push(`<rect ${this.attributes(foot)} fill="${style.borderBottomColor}"/>`);
    }
  }

  private addText(text: string, left: number, middle: number, width: number, style: CSSStyleDeclaration): void {
    if (!text.trim()) return;
    const size = parseFloat(style.fontSize);
    const [x, y] = [left - this.origin.left, middle - this.origin.top + size * 0.35];
    this.parts.push(
      `<text x="${x.toFixed(1)}" y="${y.toFixed(1)}" font-size="${size}" font-weight="${style.fontWeight}" ` +
        `font-family="${escape(style.fontFamily)}" fill="${style.color}" xml:space="preserve" ` +
        `textLength="${width.toFixed(1)}" lengthAdjust="spacingAndGlyphs">${escape(text)}</text>`,
    );
  }

  // A text node may wrap: characters with the same top belong to one line.
  private addTextNode(node: Text, style: CSSStyleDeclaration): void {
    const text = node.data;
    if (!text.trim()) return;
    const range = document.createRange();
    let from = 0;
    let line: DOMRect | null = null;
    const flush = (to: number) => {
      if (line) this.addText(text.slice(from, to).replace(/\n/g, ""), line.left, line.top + line.height / 2, line.width, style);
      from = to;
      line = null;
    };
    for (let at = 0; at < text.length; at++) {
      range.setStart(node, at);
      range.setEnd(node, at + 1);
      const box = range.getClientRects()[0];
      if (!box || box.width === 0) continue;
      if (line && Math.abs(box.top - (line as DOMRect).top) > 2) flush(at);
      line = line
        ? new DOMRect((line as DOMRect).left, (line as DOMRect).top, box.right - (line as DOMRect).left, (line as DOMRect).height)
        : box;
    }
    flush(text.length);
  }

  private addSvg(svg: SVGSVGElement, rect: DOMRect): void {
    const copy = svg.cloneNode(true) as SVGSVGElement;
    const [originals, copies] = [svg.querySelectorAll("*"), copy.querySelectorAll("*")];
    originals.forEach((element, i) => {
      const style = getComputedStyle(element);
      const names = element instanceof SVGTextContentElement ? [...SHAPE_STYLES, ...TEXT_STYLES] : SHAPE_STYLES;
      for (const name of names) copies[i].setAttribute(name, style.getPropertyValue(name));
      copies[i].removeAttribute("style");
      copies[i].removeAttribute("class");
    });
    copy.removeAttribute("style");
    copy.removeAttribute("class");
    copy.setAttribute("x", String(rect.left - this.origin.left));
    copy.setAttribute("y", String(rect.top - this.origin.top));
    copy.setAttribute("width", String(rect.width));
    copy.setAttribute("height", String(rect.height));
    this.parts.push(new XMLSerializer().serializeToString(copy));
  }

  addElement(element: Element): void {
    const style = getComputedStyle(element);
    if (style.display === "none" || style.visibility === "hidden" || element.hasAttribute("data-no-export")) return;
    const rect = element.getBoundingClientRect();
    if (style.clipPath !== "none" || (style.display !== "contents" && (rect.width < 2 || rect.height < 1))) return;
    if (element instanceof HTMLCanvasElement) {
      const smooth = style.imageRendering === "pixelated" ? ' image-rendering="pixelated"' : "";
      this.parts.push(`<image ${this.attributes(rect)} preserveAspectRatio="none"${smooth} href="${element.toDataURL()}"/>`);
      return;
    }
    if (element instanceof SVGSVGElement) return this.addSvg(element, rect);
    this.addBox(rect, style);
    if (element instanceof HTMLInputElement || element instanceof HTMLSelectElement || element instanceof HTMLTextAreaElement) {
      if (element instanceof HTMLInputElement && !["text", "number", "search"].includes(element.type)) return;
      const text = element instanceof HTMLSelectElement ? (element.selectedOptions[0]?.text ?? "") : element.value;
      const room = rect.width - 2 * parseFloat(style.paddingLeft);
      const size = parseFloat(style.fontSize);
      const letters = Math.floor(room / (size * 0.52));
      const lines = text.match(new RegExp(`.{1,${Math.max(letters, 1)}}`, "g")) ?? [];
      const rows = Math.max(1, Math.floor(rect.height / (size * 1.5)));
      lines.slice(0, rows).forEach((line, i) => {
        const middle = rows === 1 ? rect.top + rect.height / 2 : rect.top + parseFloat(style.paddingTop) + (i + 0.6) * size * 1.5;
        this.addText(line, rect.left + parseFloat(style.paddingLeft), middle, Math.min(room, line.length * size * 0.52), style);
      });
      return;
    }
    const clipped = style.overflowX !== "visible" || style.overflowY !== "visible";
    if (clipped) {
      const name = `c${this.clips++}`;
      this.parts.push(`<clipPath id="${name}"><rect ${this.attributes(rect)}/></clipPath><g clip-path="url(#${name})">`);
    }
    for (const child of element.childNodes) {
      if (child instanceof Text) this.addTextNode(child, style);
      else if (child instanceof Element) this.addElement(child);
    }
    if (clipped) this.parts.push("</g>");
  }
}

/** Export an element without its controls (forms, buttons). They are hidden only during the export. */
export function toSvg(element: HTMLElement): string {
  document.documentElement.classList.add("exporting");
  try {
    return renderSvg(element);
  } finally {
    document.documentElement.classList.remove("exporting");
  }
}

function renderSvg(element: HTMLElement): string {
  const rect = element.getBoundingClientRect();
  const writer = new SvgWriter(rect);
  writer.addElement(element);
  const [width, height] = [Math.ceil(rect.width), Math.ceil(rect.height)];
  const background = getComputedStyle(document.body).backgroundColor;
  return (
    `<svg xmlns="http://www.w3.org/2000/svg" width="${width}" height="${height}" viewBox="0 0 ${width} ${height}">` +
    `<rect width="100%" height="100%" fill="${background}"/>${writer.parts.join("")}</svg>`
  );
}

export async function toPng(svg: string): Promise<Blob> {
  const url = URL.createObjectURL(new Blob([svg], { type: "image/svg+xml" }));
  try {
    const image = new Image();
    image.src = url;
    await image.decode();
    const scale = Math.min(2, 12000 / image.width, 12000 / image.height);
    const canvas = document.createElement("canvas");
    canvas.width = Math.round(image.width * scale);
    canvas.height = Math.round(image.height * scale);
    canvas.getContext("2d")!.drawImage(image, 0, 0, canvas.width, canvas.height);
    return await new Promise((done, fail) =>
      canvas.toBlob((blob) => (blob ? done(blob) : fail(new Error("The image is too large."))), "image/png"),
    );
  } finally {
    URL.revokeObjectURL(url);
  }
}

export function save(name: string, content: Blob): void {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(content);
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}
