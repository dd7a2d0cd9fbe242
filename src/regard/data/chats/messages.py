"""Conversations and preferences in files: JSON lines in the forms that chat models are tuned with."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from regard.data.chats.template import ChatFormat, Message
from regard.data.records import Record, read_records
from regard.errors import UserError

ROLES = {"human": "user", "gpt": "assistant", "bot": "assistant"}  # as in files of ShareGPT
FORMS = '{"messages": [{"role": "user", "content": "..."}, {"role": "assistant", "content": "..."}]}'


class MessagePiece(NamedTuple):
    """A part of a text; answers are what the model learns to write."""

    text: str
    answer: bool


class Preference(NamedTuple):
    """A prompt and two answers, of which the first was preferred."""

    prompt: tuple[Message, ...]
    chosen: str
    rejected: str


def read_conversations(path: Path) -> list[tuple[Message, ...]]:
    """The conversations of a file of lines of JSON, each with an answer."""
    found = []
    for number, record in read_records(path):
        messages = conversation(record)
        if not any(message["role"] == "assistant" for message in messages):
            raise UserError(f"line {number} of {path} has no answer of an assistant; its form is {FORMS}")
        found.append(messages)
    return found


def conversation(record: Record) -> tuple[Message, ...]:
    """The messages of a record: `messages`, `conversations` (from, value), or `prompt` and `completion`; else ()."""
    listed = record.get("messages", record.get("conversations"))
    if listed is None and all(isinstance(record.get(name), str) for name in ("prompt", "completion")):
        return _asked(record["prompt"]) + _said(record["completion"])
    return messages_of(listed)


def messages_of(listed: object) -> tuple[Message, ...]:
    """A list of messages; () if it is none."""
    found = []
    for one in listed if isinstance(listed, list) else ():
        given = one if isinstance(one, Mapping) else {}
        role, content = given.get("role", given.get("from")), given.get("content", given.get("value"))
        if not isinstance(role, str) or not isinstance(content, str):
            return ()
        found.append({"role": ROLES.get(role, role), "content": content})
    return tuple(found)


def read_preferences(path: Path) -> list[Preference]:
    """The preferences of a file: `prompt`, `chosen` and `rejected`, each a text or a list of messages."""
    found = []
    for number, record in read_records(path):
        prompt = record.get("prompt")
        asked = _asked(prompt) if isinstance(prompt, str) else messages_of(prompt)
        answers = [_last(record.get(name)) for name in ("chosen", "rejected")]
        if not asked or not all(answers):
            raise UserError(f"line {number} of {path} needs prompt, chosen and rejected: texts, or lists of messages")
        if answers[0] == answers[1]:
            raise UserError(f"line {number} of {path} prefers an answer to itself; leave it out")
        found.append(Preference(asked, *answers))
    return found


def _last(given: object) -> str:
    """An answer: a text, or the last message of a list; empty if it is neither."""
    if isinstance(given, str):
        return given
    return messages_of(given)[-1]["content"] if messages_of(given) else ""


def _asked(text: str) -> tuple[Message, ...]:
    return ({"role": "user", "content": text},)


def _said(text: str) -> tuple[Message, ...]:
    return ({"role": "assistant", "content": text},)


def pieces(form: ChatFormat, messages: tuple[Message, ...]) -> list[MessagePiece]:
    """The text of a conversation by a template, divided into answers of the assistant and everything else.

    An answer is what the template adds to the prompt for it, up to and including the string that ends it, since the
    model must learn to end its answers.
    """
    found, done = [], ""
    for number, message in enumerate(messages):
        if message["role"] != "assistant":
            continue
        prompt = form.render(messages[:number], answer=True)
        whole = form.render(messages[: number + 1], answer=False)
        if not whole.startswith(prompt) or not prompt.startswith(done):
            raise UserError("the chat template does not continue its own prompt; give another with --data.template")
        answer = whole[len(prompt) :]
        ends = [at + len(stop) for stop in form.stops if stop and (at := answer.find(stop)) >= 0]
        answer = answer[: min(ends, default=len(answer))]
        found += [MessagePiece(prompt[len(done) :], False), MessagePiece(answer, True)]
        done = prompt + answer
    return found
