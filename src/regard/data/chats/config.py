"""Chat files and files of preferences, with the chat template of the model that is tuned."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self, TypeVar

from regard.config import option
from regard.data.base import DataConfig
from regard.data.chats.data import ChatData, ChatPart, EncodedChat, PreferenceData, PreferencePart, encoded
from regard.data.chats.messages import FORMS, MessagePiece, Preference, pieces, read_conversations, read_preferences
from regard.data.chats.template import ChatFormat
from regard.data.origins.progress import say
from regard.data.split import check_fractions, divide
from regard.data.tokenizers import Tokenizer
from regard.errors import UserError

T = TypeVar("T")
#: ChatML, for models that were not tuned for conversations yet.
CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)


@dataclass(frozen=True)
class MessagesConfig(DataConfig):
    """Base class of the data that a chat template makes a text of."""

    path: str | None = option(None, "the file: a JSON object on each line (.jsonl)")
    validation_path: str | None = option(None, "the same for the validation part, instead of a fraction of the file")
    validation: float = option(0.05, "the fraction of the file held out for evaluation")
    tokens: int = option(512, "length of a row; what is longer is cut")
    batch: int = option(8, "rows, or pairs of rows, per micro-batch")
    template: str | None = option(None, "the chat template (Jinja); default: the model's, or else ChatML")
    bos: str = option("", "the template's bos_token")
    eos: str = option("", "the template's eos_token")
    stops: tuple[str, ...] = option((), "texts that end an answer; default: those of the model")

    def check(self) -> None:
        """Refuse impossible values before anything is read."""
        check_fractions(self.validation, 0.0)
        for name in ("tokens", "batch"):
            if vars(self)[name] < 1 + (name == "tokens"):
                raise ValueError(f"{name} is {vars(self)[name]}, which is too small")

    def with_chat(self, form: ChatFormat | None) -> Self:
        """With the chat format of the model that is tuned, unless a template is given; the config records it."""
        if self.template is not None:
            return self
        form = form or ChatFormat(CHATML, stops=("<|im_end|>",))
        return replace(self, template=form.template, bos=form.bos, eos=form.eos, stops=form.stops)

    @property
    def form(self) -> ChatFormat:
        """The chat format."""
        return ChatFormat(self.template or CHATML, self.bos, self.eos, self.stops)

    def _parts(self, read: Callable[[Path], list[T]]) -> tuple[list[list[T]], str]:
        """The examples for training and validation, and the SHA-256 of both and the template."""
        self.check()
        if self.path is None:
            raise UserError(f"give a file of examples with --data.path FILE.jsonl; a line of a chat file is {FORMS}")
        examples = read(Path(self.path).expanduser())
        if self.validation_path is not None:
            parts = [examples, read(Path(self.validation_path).expanduser())]
        else:
            names = [json.dumps(one) for one in examples]
            parts = [[examples[n] for n in some] for some in divide(names, self.validation, 0.0)[:2]]
        if not parts[0]:
            raise UserError(f"{self.path} leaves nothing to train on; lower --data.validation, or give more examples")
        content = json.dumps([parts, self.form.to_json(), self.tokens])
        return parts, hashlib.sha256(content.encode("utf-8", "surrogatepass")).hexdigest()


@dataclass(frozen=True)
class ChatConfig(MessagesConfig, kind="chat"):
    """Conversations, packed into rows; the answers of the assistant are the targets."""

    def build(self, context: int, cache: Path | None = None, tokenizer: Tokenizer | None = None) -> ChatData:
        """Read, divide, render and tokenize the conversations."""
        tokenizer, room = tuned(tokenizer), min(self.tokens, context)
        (training, validation), sha256 = self._parts(read_conversations)
        parts = []
        for part in (training, validation):
            texts = [encoded(tokenizer, pieces(self.form, messages), room + 1) for messages in part]
            parts.append(ChatPart.of(_answered(texts, room, str(self.path)), room))
        return ChatData(parts[0], parts[1], tokenizer, self.form, name=str(self.path), sha256=sha256)


@dataclass(frozen=True)
class PreferenceConfig(MessagesConfig, kind="preferences"):
    """Prompts with a preferred and a rejected answer."""

    batch: int = option(4, "pairs of answers per micro-batch")

    def build(self, context: int, cache: Path | None = None, tokenizer: Tokenizer | None = None) -> PreferenceData:
        """Read, divide, render and tokenize the preferences."""
        tokenizer, room = tuned(tokenizer), min(self.tokens, context)
        (training, validation), sha256 = self._parts(read_preferences)
        parts = []
        for part in (training, validation):
            pairs = [[self._text(one, answer, tokenizer, room) for answer in one[1:]] for one in part]
            kept = [text for pair in pairs if all(text.targets.any() for text in pair) for text in pair]
            if lost := len(pairs) - len(kept) // 2:
                say(f"{self.path}: {lost:,} prompts are longer than {room} tokens and were left out (--data.tokens)")
            parts.append(PreferencePart(kept))
        return PreferenceData(parts[0], parts[1], tokenizer, self.form, name=str(self.path), sha256=sha256)

    def _text(self, one: Preference, answer: str, tokenizer: Tokenizer, room: int) -> EncodedChat:
        """A prompt with one of its answers; earlier answers in the prompt are no targets."""
        *before, last = pieces(self.form, (*one.prompt, {"role": "assistant", "content": answer}))
        return encoded(tokenizer, [*(MessagePiece(piece.text, False) for piece in before), last], room + 1)


def tuned(tokenizer: Tokenizer | None) -> Tokenizer:
    """The tokenizer of the model that is tuned."""
    if tokenizer is None:
        raise UserError(
            "conversations are encoded with the tokenizer of the model that is tuned; name it: --init smollm2"
        )
    return tokenizer


def _answered(texts: list[EncodedChat], room: int, name: str) -> list[EncodedChat]:
    """The texts with at least one target; a line says how many are cut, and how many have none left."""
    kept = [text for text in texts if text.targets.any()]
    cut, lost = sum(text.cut for text in kept), len(texts) - len(kept)
    if cut or lost:
        say(
            f"{name}: {cut:,} conversations were cut at {room} tokens, {lost:,} had no answer before it (--data.tokens)"
        )
    return kept
