"""A folder of small pictures with captions, and files of emoji like those of the sources."""

from __future__ import annotations

import io
import json
from pathlib import Path

import numpy as np
from PIL import Image

from regard.data.imagetext.emoji import pack_captions, pack_pictures

COLORS = {"red": (255, 0, 0), "green": (0, 160, 0), "blue": (0, 0, 255), "yellow": (255, 230, 0)}
PLACES = ("left", "right", "top", "bottom", "middle")
BOXES = ((0, 0, 4, 8), (4, 0, 8, 8), (0, 0, 8, 4), (0, 4, 8, 8), (2, 2, 6, 6))
#: Code points, the English name, and the number of the category.
EMOJI = {
    "1F9D1-200D-1F680": ("astronaut", 1),
    "1F468-200D-1F680": ("man astronaut", 1),
    "1F469-200D-1F680": ("woman astronaut", 1),
    "1F34E": ("red apple", 0),
    "1F34F": ("green apple", 0),
    "1F436": ("dog", 0),
    "1F415": ("dog", 0),
    "2764-FE0F": ("red heart", 1),
    "1F44B": ("waving hand", 1),
}


def folder(path: Path, classes: bool = True) -> Path:
    """Twenty pictures of colored boxes and what they show."""
    path.mkdir()
    lines = ["file\ttext" + "\tclass" * classes]
    for color, value in COLORS.items():
        for place, box in zip(PLACES, BOXES, strict=True):
            picture = Image.new("RGB", (8, 8), (255, 255, 255))
            picture.paste(value, box)
            picture.save(path / f"{color}-{place}.png")
            lines.append(f"{color}-{place}.png\t{color} box, {place}, {color}" + f"\t{color}" * classes)
    (path / "captions.tsv").write_text("\n".join(lines) + "\n")
    return path


def png(seed: int) -> bytes:
    """A picture of 64 x 64 pixels with transparent parts."""
    pixels = np.random.default_rng(seed).integers(0, 256, (64, 64, 4), np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels, "RGBA").save(file, "png")
    return file.getvalue()


def emoji_files(path: Path, missing: tuple[str, ...] = ()) -> tuple[Path, Path]:
    """The files of pictures and of captions; some emoji have no picture, and the hand has one for two skin tones."""
    codes = [*(code for code in EMOJI if code not in missing), "1F44B-1F3FB", "1F44B-1F3FF"]
    pictures = pack_pictures({f"img/64/{code.lower()}.png": png(number) for number, code in enumerate(codes)})
    names = {"groups": [{"order": n, "message": f"Group {n}"} for n in (0, 1)]}
    names["subgroups"] = [{"order": n, "message": f"Below {n}"} for n in (0, 1)]
    members = {"meta/groups.json": {"groups": {"0": "things", "1": "people"}, "hierarchy": {"0": [0], "1": [1]}}}
    for language, suffix in (("en", ""), ("de", "e")):
        rows = [
            {"hexcode": code, "label": name + suffix, "tags": [f"tag{number}{suffix}"], "group": category}
            for number, (code, (name, category)) in enumerate(EMOJI.items())
        ]
        members |= {f"{language}/data.json": rows, f"{language}/messages.json": names}  # type: ignore[dict-item]
    captions = pack_captions({name: json.dumps(content).encode() for name, content in members.items()})
    (path / "pictures.safetensors").write_bytes(pictures)
    (path / "captions.json").write_bytes(captions)
    return path / "pictures.safetensors", path / "captions.json"
