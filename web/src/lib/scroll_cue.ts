// A cue that an element scrolls: its content fades out at the edges beyond which there is more.
const FADE = 28; // pixels

export function scrollCue(element: HTMLElement): { destroy: () => void } {
  element.classList.add("cue");
  const update = () => {
    const { scrollLeft, scrollTop, scrollWidth, scrollHeight, clientWidth, clientHeight } = element;
    const fades = { left: scrollLeft, right: scrollWidth - clientWidth - scrollLeft, top: scrollTop, bottom: scrollHeight - clientHeight - scrollTop };
    for (const [side, hidden] of Object.entries(fades)) element.style.setProperty(`--${side}`, `${hidden > 1 ? Math.min(FADE, hidden) : 0}px`);
  };
  const sizes = new ResizeObserver(update);
  sizes.observe(element);
  const watchChildren = () => {
    for (const child of element.children) sizes.observe(child);
    update();
  };
  const children = new MutationObserver(watchChildren);
  children.observe(element, { childList: true });
  element.addEventListener("scroll", update, { passive: true });
  watchChildren();
  return {
    destroy: () => {
      sizes.disconnect();
      children.disconnect();
      element.removeEventListener("scroll", update);
    },
  };
}
