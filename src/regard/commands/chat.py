"""`regard chat`."""

from __future__ import annotations

import sys
from dataclasses import dataclass

from regard.commands.common import CheckpointOptions, naming_options, open_run, say_newest
from regard.config import option
from regard.errors import UserError
from regard.runs.folder import CHAT


@dataclass(frozen=True)
class ChatOptions(CheckpointOptions):
    """Options of `regard chat`."""

    message: str | None = option(None, "answer this message and exit, instead of a conversation")
    system: str | None = option(None, "the system message; default: the one of the model's template")
    tokens: int = option(512, "maximum number of tokens of an answer")
    temperature: float = option(0.2, "sampling temperature, low as small models need it; 0 is greedy decoding")
    top_p: float = option(0.9, "sample from the most likely tokens with this total probability (nucleus)")
    seed: int = option(1, "random seed of the sampling")


def chat(options: ChatOptions) -> int:
    """Talk with an imported model that was tuned for conversations; answers are streamed.

    Each line that you type is a message. /reset begins a new conversation, /quit or Ctrl-D quits, Ctrl-C stops an
    answer.
    """
    options.check_at_least_one("tokens")
    run = open_run(options.run, options.runs, preferred=lambda one: one.file(CHAT).exists())
    if options.run is None:
        say_newest(run)
    from regard.data.chats.template import ChatFormat
    from regard.generate import Sampling, TextGenerator
    from regard.generate.chat import Conversation
    from regard.models.base import LanguageModel

    if not run.file(CHAT).exists():
        raise UserError(f"{run.path} has no chat template; continue a text instead: regard generate {run.path}")
    form = ChatFormat.read(run.read(CHAT))
    with naming_options():
        sampling = Sampling(options.temperature, top_p=options.top_p)
    model, loaded = options.load(run, LanguageModel, ", which generates no text")
    generator = TextGenerator(
        model, loaded.tokenizer, sampling, length=options.tokens, seed=options.seed, stops=form.stops
    )
    talk = Conversation(generator, form, options.system)
    if options.message is not None:
        answer = talk.answer(options.message, None if options.json else sys.stdout)
        options.show({"run": str(run.path), "message": options.message, "answer": answer}, "")
        return 0
    talk.run(lambda: input("> " if sys.stdin.isatty() else ""), sys.stdout, sys.stderr)
    return 0
