"""Grapheme to phoneme: the pretrained GRU encoder-decoder of the Python package `g2p_en`, as a ``Seq2Seq``.

Its `checkpoint20.npz` has arrays in PyTorch's layout (gates in the order r, z, n; the reset gate multiplies the product
with the state). The encoder's last state initializes the decoder, and there is no attention.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple
from zipfile import BadZipFile

import numpy as np
import torch
from torch import Tensor

from regard.errors import UserError
from regard.models import FixedConfig, Seq2Seq, Seq2SeqConfig

GRAPHEMES = ("<pad>", "<unk>", "</s>", *"abcdefghijklmnopqrstuvwxyz")
VOWELS = ("AA", "AE", "AH", "AO", "AW", "AY", "EH", "ER", "EY", "IH", "IY", "OW", "OY", "UH", "UW")
CONSONANTS = (*"BDFGKLMNPRSTVWYZ", "CH", "DH", "HH", "JH", "NG", "SH", "TH", "ZH")
#: ARPAbet in the order of the alphabet: vowels with their stress (0 none, 1 primary, 2 secondary), one also without.
SOUNDS = sorted([*CONSONANTS, "UW", *(vowel + stress for vowel in VOWELS for stress in "012")])
PHONEMES = ("<pad>", "<unk>", "<s>", "</s>", *SOUNDS)

#: The parameter of each array in the file.
NAMES = {
    "enc_emb": "source_embed.weight",
    "enc_w_ih": "encoder.cells.weight_ih_l0",
    "enc_w_hh": "encoder.cells.weight_hh_l0",
    "enc_b_ih": "encoder.cells.bias_ih_l0",
    "enc_b_hh": "encoder.cells.bias_hh_l0",
    "dec_emb": "embed.weight",
    "dec_w_ih": "decoder.cells.cells.weight_ih_l0",
    "dec_w_hh": "decoder.cells.cells.weight_hh_l0",
    "dec_b_ih": "decoder.cells.cells.bias_ih_l0",
    "dec_b_hh": "decoder.cells.cells.bias_hh_l0",
    "fc_w": "unembed.weight",
    "fc_b": "unembed.bias",
}


class Pronouncer(NamedTuple):
    """A model from the letters of words to phonemes."""

    model: Seq2Seq
    graphemes: tuple[str, ...] = GRAPHEMES
    phonemes: tuple[str, ...] = PHONEMES

    def encode(self, words: Sequence[str]) -> tuple[Tensor, Tensor]:
        """Letters [B, S], each word followed by the end token, and their number in each row."""
        number = {letter: i for i, letter in enumerate(self.graphemes)}
        rows = [[number.get(letter, number["<unk>"]) for letter in [*word, "</s>"]] for word in words]
        longest = max(map(len, rows))
        padded = [row + [number["<pad>"]] * (longest - len(row)) for row in rows]
        return torch.tensor(padded), torch.tensor([len(row) for row in rows])

    def pronounce(self, words: Sequence[str], longest: int = 20) -> list[list[str]]:
        """The most likely phoneme at every step (greedy decoding)."""
        if not words:
            return []
        source, lengths = self.encode(words)
        begin, end = self.phonemes.index("<s>"), self.phonemes.index("</s>")
        state = self.model.start(len(words), longest, source=source, source_lengths=lengths)
        tokens = torch.full((len(words), 1), begin)
        steps = []
        for _ in range(longest):
            logits, state = self.model.step(tokens, state)
            tokens = logits.argmax(-1)
            steps.append(tokens)
        rows = torch.cat(steps, dim=1).tolist()
        return [[self.phonemes[i] for i in (row[: row.index(end)] if end in row else row)] for row in rows]


def read_g2p(path: Path | str) -> Pronouncer:
    """Load a `checkpoint20.npz`. Pickled objects in the file are refused."""
    arrays = _arrays(Path(path))
    width, embedding = arrays["enc_w_hh"].shape[-1], arrays["enc_emb"].shape[-1]
    config = Seq2SeqConfig(
        vocabulary=len(PHONEMES),
        source_vocabulary=len(GRAPHEMES),
        context=64,
        cell="gru",
        width=width,
        embedding=embedding,
        dropout=0.0,
        tied=False,
        bidirectional=False,
        attention=FixedConfig(every_step=False),
    )
    model = config.build().eval()
    wanted = model.state_dict()
    for name, place in NAMES.items():
        if arrays[name].shape != wanted[place].shape:
            raise UserError(
                f"{path}: {name} has the shape {arrays[name].shape}, but must have {tuple(wanted[place].shape)}; "
                "take checkpoint20.npz from the package g2p_en 2.1.0"
            )
    model.load_state_dict({place: torch.from_numpy(arrays[name]) for name, place in NAMES.items()})
    return Pronouncer(model)


def _arrays(path: Path) -> dict[str, np.ndarray]:
    try:
        with path.open("rb") as bare, np.load(bare, allow_pickle=False) as file:
            arrays = {name: np.asarray(file[name], np.float32) for name in NAMES}
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror or error}") from error
    except KeyError as error:
        raise UserError(f"{path} is no checkpoint20.npz of g2p_en: {error.args[0]}") from error
    except (ValueError, TypeError, BadZipFile, EOFError) as error:
        raise UserError(f"{path} is no archive of plain number arrays: {error}") from error
    flat = [name for name in ("enc_w_hh", "enc_emb") if arrays[name].ndim != 2]
    if flat:
        raise UserError(f"{path}: {flat[0]} must be a matrix, but has {arrays[flat[0]].ndim} axes")
    return arrays
