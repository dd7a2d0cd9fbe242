"""Near-duplicates among recordings: the same words of the same voice under two names must not be in two parts.

The fingerprint of a recording is its log-mel spectrogram of 16 bands, averaged to 24 moments: two are alike if their
correlation is above a threshold and their lengths differ by less than 15 %.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from regard.data.origins.cache import store_json
from regard.data.origins.progress import ProgressLine
from regard.data.signals.arrays import to_floats
from regard.data.signals.recordings import Samples

_BANDS, _MOMENTS = 16, 24
_LENGTHS = np.log(1.15)
_FORMAT = "alike 1"  # part of the cache's key: change it when the format changes


def joined_groups(groups: Sequence[str], pairs: Sequence[tuple[int, int]]) -> list[str]:
    """The groups after those of each pair of members have become one; a group has the name of its first member.

    >>> joined_groups(["a", "b", "c", "b"], [(0, 3)])
    ['a', 'a', 'c', 'a']
    """
    parents = {group: group for group in groups}

    def root(group: str) -> str:
        while parents[group] != group:
            parents[group] = parents[parents[group]]
            group = parents[group]
        return group

    for one, other in pairs:
        first, second = sorted((root(groups[one]), root(groups[other])))
        parents[second] = first
    return [root(group) for group in groups]


def alike_once(
    samples: Sequence[Samples], rate: int, above: float, key: str | None, cache: Path
) -> list[tuple[int, int]]:
    """As ``alike``, cached by ``key``, the SHA-256 of the source; None: not cached."""
    name = hashlib.sha256(f"{_FORMAT}|{key}|{rate}|{above}".encode()).hexdigest()[:32]
    place = cache / "near" / f"{name}.json"
    if key is not None:
        with suppress(OSError, ValueError, TypeError):
            return [(int(one), int(other)) for one, other in json.loads(place.read_text(encoding="utf-8"))]
    found = alike(samples, rate, above)
    if key is not None:
        store_json(cache, place, found)
    return found


def alike(samples: Sequence[Samples], rate: int, above: float) -> list[tuple[int, int]]:
    """The pairs of recordings that are near-duplicates."""
    prints = fingerprints(samples, rate)
    lengths = np.log([len(one) for one in samples])
    close = np.abs(lengths[:, None] - lengths) < _LENGTHS
    found = np.argwhere(np.triu((prints @ prints.T > above) & close, 1))
    return [(int(one), int(other)) for one, other in found]


def fingerprints(samples: Sequence[Samples], rate: int) -> NDArray[np.float32]:
    """The fingerprint of each recording, of length 1."""
    import torch
    from torch.nn import functional as F

    from regard.nn.sound import LogMel

    hop = rate // 50
    spectrum, rows = LogMel(_BANDS, rate, (2 * hop,), hop), []
    with ProgressLine("comparing recordings", len(samples)) as progress:
        for one in samples:
            sound = torch.from_numpy(to_floats(one))[None, :, 0]
            bands = spectrum(sound, torch.ones(1, 1, -(-sound.shape[1] // hop)))
            rows.append(F.adaptive_avg_pool1d(bands, _MOMENTS).flatten())
            progress.advance(1)
    found = torch.stack(rows)
    return F.normalize(found - found.mean(1, keepdim=True), dim=1).numpy()
