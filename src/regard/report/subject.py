"""What a model in training is shown, again and again: a passage of a text, or a few sentences to translate."""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

import torch

from regard.errors import UserError
from regard.generate import Sampling, decode
from regard.generate.sample_seq2seq import sample_seq2seq
from regard.generate.seq2seq import Rules
from regard.look import at_rest, passage

#: Tokens of a sample, and of the passage that heads are measured on; sentences that are translated.
SAMPLE, PASSAGE, SENTENCES = 200, 128, 4
ROOM = 8  # tokens that a translation may have beyond twice its source's


class Subject(Protocol):
    """Something to look at a model with."""

    def forward(self, model: Any) -> Any:
        """The pass during which attention is looked at."""
        ...

    def sample(self, model: Any) -> dict[str, Any]:
        """What the model makes of it, always with the same draws: "prompt", "text" and how it was drawn."""
        ...


def find_subject(data: Any, model: Any, device: torch.device, seed: int) -> Subject | None:
    """What there is to look at; None: this data is neither a text nor pairs."""
    if data.tokenizer is None:
        return None
    kind = Sentences if data.specials is not None else Text
    return kind(data, model, device, seed)


class Text:
    """A held-out passage, and a text that goes on from a new line."""

    def __init__(self, data: Any, model: Any, device: torch.device, seed: int):
        self._passage = passage(data, PASSAGE, seed).tokens.to(device)
        self._tokenizer, self._context, self._device = data.tokenizer, model.context, device
        try:
            self._prompt = data.tokenizer.encode("\n").tolist()
        except UserError:  # a text of one line
            self._prompt = [int(self._passage[0])]

    def forward(self, model: Any) -> Any:
        """The model on the passage."""
        return model(self._passage[None])

    def sample(self, model: Any) -> dict[str, Any]:
        """A little of its writing."""
        sampling = Sampling()
        with at_rest(model):
            settings: dict[str, Any] = {"seed": 1, "context": self._context, "device": self._device}
            # Without graphs: training may hold its own.
            rows = decode(model, [self._prompt], SAMPLE, sampling, **settings, graphs=False)
            text = self._tokenizer.decode([row[0] for row in rows])
        told = {"prompt": self._tokenizer.decode(self._prompt), "text": text}
        return {**told, "temperature": sampling.temperature, "seed": 1}


class Made(NamedTuple):
    """A translation of one of the sentences."""

    text: str
    reference: str
    source: list[int]
    tokens: list[int]


class Sentences:
    """A few held-out pairs, from short to long."""

    def __init__(self, data: Any, model: Any, device: torch.device, seed: int = 0):
        self.held_out = bool(data.validation.sources)
        pairs = data.validation if self.held_out else data.train
        order = sorted(range(len(pairs.sources)), key=lambda i: (len(pairs.sources[i]), i))
        chosen = [order[len(order) * (2 * i + 1) // (2 * SENTENCES)] for i in range(SENTENCES)]
        self._pairs = [(pairs.sources[i], pairs.targets[i]) for i in chosen]
        self._data, self._context, self._device = data, model.context, device

    def forward(self, model: Any) -> Any:
        """Teacher forcing on the longest of them."""
        text, translation = self._pairs[-1]
        source = self._encode(text)
        target = self._data.tokenizer.encode(translation).tolist()[: self._context - 1]
        inputs = torch.tensor([[self._data.specials.begin, *target]], device=self._device)
        return model(inputs, *self._rows(source))

    def sample(self, model: Any) -> dict[str, Any]:
        """Their translations, beside the references."""
        decode = self._data.tokenizer.decode
        lines = [f"{m.text}\n→ {decode(m.tokens)}\n= {m.reference}\n" for m in self.translations(model)]
        return {"prompt": "", "text": "\n".join(lines), "temperature": 0.0, "seed": 1}

    def translations(self, model: Any) -> list[Made]:
        """The likeliest token after the likeliest."""
        found = []
        for text, reference in self._pairs:
            source = self._encode(text)
            most = min(self._context, 2 * len(source) + ROOM)  # a new model finds no end
            rules = Rules(self._data.specials, 0, most)
            with at_rest(model):
                made = sample_seq2seq(model, *self._rows(source), rules, Sampling(0.0))[0][0]
            found.append(Made(text, reference, source, made.tokens))
        return found

    def _encode(self, text: str) -> list[int]:
        return self._data.encode_source(text)[-self._context :]

    def _rows(self, source: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.tensor([source], device=self._device), torch.tensor([len(source)], device=self._device)
