"""Fixed inputs that a model is evaluated on during training: a passage of text, or a few sentences to translate."""

import math
import time
from typing import NamedTuple

import torch
from torch import Tensor

from regard.data.base import Data
from regard.data.tokenizers import Tokenizer
from regard.data.translation.pairs import PairData
from regard.errors import UserError
from regard.generate import OutputConstraints, Sampling, decode_seq2seq, sampling_decoder
from regard.look import evaluation_mode, passage
from regard.models.base import LanguageModel, Model, ModelConfig, Seq2SeqModel
from regard.runs.disk import JsonObject

#: Tokens of a sample, tokens of the passage that heads are measured on, sentences that are translated.
SAMPLE, PASSAGE, SENTENCES = 200, 128, 4
SHORT = 40  # tokens of a sample that may take no time
ROOM = 8  # tokens that a translation may have beyond twice its source's


class TextProbe:
    """A held-out passage, and a text generated from a newline, always with the same random numbers."""

    def __init__(self, data: Data, tokenizer: Tokenizer, device: torch.device, seed: int):
        self._passage = passage(data, PASSAGE, seed).tokens.to(device)
        self._tokenizer = tokenizer
        try:
            self._prompt = tokenizer.encode("\n").tolist()
        except UserError:  # the vocabulary has no newline
            self._prompt = [int(self._passage[0])]

    def forward(self, model: Model) -> Tensor:
        """The model on the passage."""
        return model(self._passage[None])

    def sample(self, model: Model, seconds: float = math.inf) -> JsonObject:
        """A continuation of a newline, as a record of samples.jsonl; a short one if time is short."""
        assert isinstance(model, LanguageModel)
        sampling = Sampling()
        with evaluation_mode(model):
            # Without CUDA graphs: training may have captured its own.
            tokens, began = list[int](), time.perf_counter()
            for token in sampling_decoder(model, [self._prompt], SAMPLE, sampling, graphs=False):
                tokens.append(int(token))
                if len(tokens) >= SHORT and time.perf_counter() - began > seconds:
                    break
            text = self._tokenizer.decode(tokens)
        prompt = self._tokenizer.decode(self._prompt)
        return {"prompt": prompt, "text": text, "temperature": sampling.temperature, "seed": 1}


class ProbeTranslation(NamedTuple):
    """A translation of one of the sentences."""

    text: str
    reference: str
    source: list[int]
    tokens: list[int]


class TranslationProbe:
    """A few held-out pairs, from short to long."""

    def __init__(self, data: PairData, config: ModelConfig, device: torch.device):
        self.held_out = bool(data.validation.sources)
        pairs = data.validation if self.held_out else data.train
        order = sorted(range(len(pairs.sources)), key=lambda i: (len(pairs.sources[i]), i))
        chosen = [order[len(order) * (2 * i + 1) // (2 * SENTENCES)] for i in range(SENTENCES)]
        self._pairs = [(pairs.sources[i], pairs.targets[i]) for i in chosen]
        self._data, self._context, self._device = data, config.context, device

    def forward(self, model: Model) -> Tensor:
        """Teacher forcing on the longest pair."""
        text, translation = self._pairs[-1]
        target = self._data.tokenizer.encode(translation).tolist()[: self._context - 1]
        inputs = torch.tensor([[self._data.specials.begin, *target]], device=self._device)
        return model(inputs, *self._rows(self._encode(text)))

    def sample(self, model: Model, seconds: float = math.inf) -> JsonObject:
        """The translations beside the references."""
        decode = self._data.tokenizer.decode
        lines = [f"{t.text}\n→ {decode(t.tokens)}\n= {t.reference}\n" for t in self.translations(model)]
        return {"prompt": "", "text": "\n".join(lines), "temperature": 0.0, "seed": 1}

    def translations(self, model: Model) -> list[ProbeTranslation]:
        """Greedy translations."""
        assert isinstance(model, Seq2SeqModel)
        results = []
        for text, reference in self._pairs:
            source = self._encode(text)
            most = min(self._context, 2 * len(source) + ROOM)  # an untrained model never ends
            constraints = OutputConstraints.of(self._data.specials, 0, most)
            with evaluation_mode(model):
                best = decode_seq2seq(model, *self._rows(source), constraints, Sampling(0.0))[0][0]
            results.append(ProbeTranslation(text, reference, source, best.tokens))
        return results

    def _encode(self, text: str) -> list[int]:
        return self._data.encode_source(text)[-self._context :]

    def _rows(self, source: list[int]) -> tuple[Tensor, Tensor]:
        return torch.tensor([source], device=self._device), torch.tensor([len(source)], device=self._device)


Probe = TextProbe | TranslationProbe


def find_probe(data: Data, config: ModelConfig, device: torch.device, seed: int) -> Probe | None:
    """The probe for this data; None if it is neither text nor sentence pairs."""
    if isinstance(data, PairData):
        return TranslationProbe(data, config, device)
    return None if data.tokenizer is None or data.shape is not None else TextProbe(data, data.tokenizer, device, seed)
