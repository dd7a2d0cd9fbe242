"""A mask expression as the page draws it: every pair as a bit, the tiles, and who would compute it."""

from __future__ import annotations

import base64
import re
from typing import Any

import numpy as np
import torch

from regard.attention import Range
from regard.attention.masks.expression import parse, write
from regard.attention.slots import make_pairs
from regard.errors import UserError
from regard.look.pictures.mask_view import view


class Wrong(Exception):
    """An expression that cannot be read, and where."""

    def __init__(self, why: str, position: int | None):
        super().__init__(why)
        self.position = position


def masked(expression: str, length: int, block: int) -> dict[str, Any]:
    """POST /api/masks."""
    try:
        mask = parse(expression)
        seen = view(mask, length, block=block, most=length)
    except UserError as problem:
        found = re.search(r"position (\d+)", str(problem))
        raise Wrong(str(problem), int(found[1]) if found else None) from problem
    slots = Range(length)
    pairs = make_pairs(slots, slots, heads=1, device=torch.device("cpu"), batch=1, rows=slice(0, length))
    allowed = mask.allows(pairs).expand(1, 1, length, length)[0, 0].numpy()
    return {
        "expression": write(mask),
        "length": length,
        "cells": base64.b64encode(np.packbits(allowed.reshape(-1)).tobytes()).decode(),
        "blocks": {"size": block, "rows": seen.layout.tolist()},
        "allowed": seen.allowed,
        "share": seen.allowed / seen.pairs,
        "backend": seen.explanation.chosen,
        "error": None,
    }
