// A cue that an element scrolls: its content fades out at the edges beyond which there is more.
const FADE = 28; // pixels

export function scrollCue(element: HTMLElement): { destroy: () => void } {
  element.classList.add("cue");
  const update = () => {
    const { scrollLeft, scrollTop, scrollWidth, scrollHeight, clientWidth, clientHeight } = element;
    const fades = { left: scrollLeft, right: scrollWidth - clientWidth - scrollLeft, top: scrollTop, bottom: scrollHeight - clientHeight - scrollTop };
    for (const [side, hidden] of Object.entries(fades)) element.style.setProperty(`--${side}`, `${hidden > 1 ? Math.min(FADE, hidden) : 0}px`);
  };
  const observer = new ResizeObserver(update);
  observer.observe(element);
  for (const child of element.children) observer.observe(child);
  element.addEventListener("scroll", update, { passive: true });
  update();
  return {
    destroy: () => {
      observer.disconnect();
      element.removeEventListener("scroll", update);
    },
  };
}
