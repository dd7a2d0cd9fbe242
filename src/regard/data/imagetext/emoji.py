"""Emoji as images with texts: the files of their sources, and which emoji are variants of one.

Pictures of a style are in one file, and the names of all emoji in 28 languages in another; code points join them.
"""

from __future__ import annotations

import io
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from regard.data.images.arrays import Pixels
from regard.data.images.folder import pillow
from regard.data.imagetext.captioned import Captioned, ImageTexts, Prompts
from regard.errors import UserError

SIDE = 64  # rows and columns of a picture
TONES = re.compile("-1F3F[B-F]")
#: Code points that make a variant: skin tones, the signs of a woman and a man, the direction.
_VARIANT = re.compile("(-200D)?-(1F3F[B-F]|2640|2642|27A1)(?![0-9A-F])")
#: The same person as a man, a woman or neither: one of each is replaced by the first.
_PERSONS = ("1F9D1 1F468 1F469", "1F9D2 1F466 1F467", "1F9D3 1F474 1F475", "1F385 1F936", "1FAC5 1F934 1F478")
_PERSON = {code: codes.split()[0] for codes in _PERSONS for code in codes.split()}
_COMPANY = re.compile(r"1F9D[12].*1F9D[12]|1F46A|1F46[B-D]|1F48F|1F491")  # families and couples


def plain(code: str) -> str:
    """A sequence of code points without variation selectors, which packages write or leave out."""
    return code.upper().replace("-FE0F", "")


def family(code: str) -> str:
    """What the variants of an emoji by skin tone, gender, person or direction have in common.

    >>> family("1F469-1F3FD-200D-1F680") == family("1F468-200D-1F680")  # a woman and a man who are astronauts
    True
    """
    code = _VARIANT.sub("", plain(code))
    code = "-".join(_PERSON.get(one, one) for one in code.split("-"))
    return "1F46A" if _COMPANY.search(code) else code


def pack_pictures(members: Mapping[str, bytes]) -> bytes:
    """Image files that are named after code points as one safetensors file: colors on white, [N, 3, 64, 64].

    Of larger pictures means are taken over boxes of pixels.
    """
    from safetensors.numpy import save

    codes = {plain(name.rpartition("/")[2].rpartition(".")[0]): content for name, content in members.items()}
    pictures = []
    for code in sorted(codes):
        with pillow().open(io.BytesIO(codes[code])) as image:
            pixels = np.asarray(image.convert("RGBA"), np.uint32)
        opacity = pixels[..., 3:]
        picture = ((pixels[..., :3] * opacity + 255 * (255 - opacity) + 127) // 255).astype(np.uint8)
        if picture.shape[:2] != (SIDE, SIDE):
            image = pillow().fromarray(picture)
            picture = np.asarray(image.resize((SIDE, SIDE), pillow().Resampling.BOX))
        pictures.append(picture)
    stacked = np.ascontiguousarray(np.stack(pictures).transpose(0, 3, 1, 2))
    return save({"images": stacked}, {"codes": json.dumps(sorted(codes))})


def pack_captions(members: Mapping[str, bytes]) -> bytes:
    """The names and tags of every emoji in every language, and those of their categories, as JSON."""
    languages = sorted({name.partition("/")[0] for name in members if name.endswith("/data.json")})
    keys = json.loads(members["meta/groups.json"])
    found: dict[str, Any] = {"categories": [], "prompts": {}, "emoji": {}}
    found["categories"] = [keys["groups"][str(number)] for number in range(len(keys["groups"]))]
    parents = {below: int(group) for group, every in keys["hierarchy"].items() for below in every}
    for language in languages:
        names = json.loads(members[f"{language}/messages.json"])
        groups, below = ({one["order"]: one["message"] for one in names[key]} for key in ("groups", "subgroups"))
        found["prompts"][language] = [[parents[number], name] for number, name in sorted(below.items())]
        found["prompts"][language] += [[number, name] for number, name in sorted(groups.items())]
        for one in json.loads(members[f"{language}/data.json"]):
            if "group" in one:
                entry = found["emoji"].setdefault(plain(one["hexcode"]), {"category": one["group"], "texts": {}})
                entry["texts"][language] = [one["label"], *one.get("tags", ())]
    return json.dumps(found, ensure_ascii=False, sort_keys=True, separators=(",", ":")).encode()


def read_emoji(pictures: Path, captions: Path) -> ImageTexts:
    """The emoji of a style, each with its variants by skin tone as further pictures of the same.

    Emoji of one family, and those of the same name, are in one group; the groups are those of all emoji, so that
    every style is divided alike.
    """
    images, codes = _pictures(pictures)
    shown: dict[str, list[int]] = {}
    for number in sorted(range(len(codes)), key=lambda number: (len(codes[number]), codes[number])):
        shown.setdefault(TONES.sub("", codes[number]), []).append(number)
    try:
        known = json.loads(captions.read_bytes())
        names: dict[str, dict[str, Any]] = known["emoji"]
        groups = _groups({code: one["texts"]["en"][0] for code, one in names.items()})
        examples = [
            Captioned(code, tuple(shown.get(code, ())), one["texts"], groups[code], one["category"])
            for code, one in sorted(names.items())
        ]
        prompts = {
            language: Prompts(tuple(text for _, text in some), tuple(number for number, _ in some))
            for language, some in known["prompts"].items()
        }
        return ImageTexts(images, tuple(examples), tuple(known["categories"]), prompts)
    except (ValueError, KeyError, TypeError, IndexError, AttributeError) as error:
        raise UserError(f"{captions} is damaged ({error}); remove it, and it is fetched again") from error


def _pictures(path: Path) -> tuple[Pixels, list[str]]:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="numpy") as file:
            return file.get_tensor("images"), json.loads((file.metadata() or {})["codes"])
    except (SafetensorError, OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(f"{path} is no whole file of pictures ({error}); remove it, and it is fetched again") from error


def _groups(names: Mapping[str, str]) -> dict[str, str]:
    """The group of each emoji: families, joined where two of them have an emoji of the same name."""
    parent = {family(code): family(code) for code in names}

    def root(one: str) -> str:
        while parent[one] != one:
            one = parent[one]
        return one

    first: dict[str, str] = {}
    for code in sorted(names):
        other = first.setdefault(names[code].casefold(), family(code))
        one, two = sorted((root(other), root(family(code))))
        parent[two] = one
    return {code: root(family(code)) for code in names}
