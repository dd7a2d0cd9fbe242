"""A mask expression in the format of the API: every pair as a bit, the block layout, and the chosen backend."""

from __future__ import annotations

import base64

import numpy as np
import torch

from regard.attention import Range
from regard.attention.masks.expression import MaskExpressionError, parse, write
from regard.attention.slots import make_pairs
from regard.errors import UserError
from regard.look.pictures.mask_view import view
from regard.runs.disk import JsonObject


def describe_mask(expression: str, length: int, block: int) -> JsonObject:
    """Evaluate a mask expression for ``length`` tokens; an invalid expression gives its error and position."""
    try:
        mask = parse(expression)
        mask_view = view(mask, length, block=block, most=length)
    except UserError as error:
        return {"error": str(error), "position": error.position if isinstance(error, MaskExpressionError) else None}
    slots = Range(length)
    pairs = make_pairs(slots, slots, heads=1, device=torch.device("cpu"), batch=1, rows=slice(0, length))
    allowed = mask.allows(pairs).expand(1, 1, length, length)[0, 0].numpy()
    return {
        "expression": write(mask),
        "length": length,
        "cells": base64.b64encode(np.packbits(allowed.reshape(-1)).tobytes()).decode(),
        "blocks": {"size": block, "rows": mask_view.layout.tolist()},
        "allowed": mask_view.allowed,
        "density": mask_view.allowed / mask_view.pairs,
        "backend": mask_view.explanation.chosen,
        "error": None,
    }
