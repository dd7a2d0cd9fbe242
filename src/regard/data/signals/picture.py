"""The picture of a sound for `regard look`: its spectrogram, and above it how much attention each part gets."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from regard.nn.sound import LogMel, within
from regard.pages.svg import define_map, moved, picture, rectangle, text

BANDS, HOP = 64, 100  # bands of the spectrogram, frames per second
WIDTH, HEIGHT, BAR, GAP = 800, 192, 40, 20


def sound_picture(sound: Tensor, weights: Sequence[float], rate: int) -> str:
    """An SVG file for a sound [T]; ``weights`` [N] of its parts, each drawn relative to the largest."""
    hop = rate // HOP
    frames = -(-len(sound) // hop)
    whole = within(sound.new_full((1,), frames), frames, sound)
    bands = LogMel(BANDS, rate, (rate // 40,), hop)(sound[None], whole)[0].flip(0)  # low notes below
    gray = ((bands.clamp(-2, 3) + 2) * 51).byte().numpy()
    width, heights = WIDTH / len(weights), [BAR * weight / max(weights) for weight in weights]
    bars = [rectangle("key c1", 0.9 * width, high, x=n * width, y=BAR - high) for n, high in enumerate(heights)]
    maps = define_map("sound", [row.tobytes() for row in gray])
    seconds = len(sound) / rate
    about = f"{seconds:.2f} seconds in {len(weights)} parts; the bars are their attention, over all layers and heads"
    content = [
        text(about, GAP, GAP),
        moved(GAP, 2 * GAP - 4, "".join(bars)),
        moved(GAP, 2 * GAP + BAR, rectangle("ink", WIDTH, HEIGHT, mask="url(#sound)")),
        text("0 s", GAP, 3 * GAP + BAR + HEIGHT),
        text(f"{seconds:.2f} s", GAP + WIDTH, 3 * GAP + BAR + HEIGHT, anchor="end"),
    ]
    return picture("Attention on a sound", about, WIDTH + 2 * GAP, 4 * GAP + BAR + HEIGHT, [maps, *content])
