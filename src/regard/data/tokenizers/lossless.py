"""Checks that a `tokenizer.json` is lossless: known lossless steps are accepted, all others refused."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from regard.data.tokenizers.byte_tokens import SINGLES, unwritten


def tokens_of(content: Any) -> list[bytes]:
    """The bytes of each token of a lossless byte-level BPE, by id; ``ValueError`` if it is not one."""
    if not isinstance(content, dict) or not isinstance(model := content.get("model"), dict):
        raise ValueError("it has no model")
    if model.get("type") != "BPE":
        raise ValueError(f"its model is {model.get('type')}; only a byte-level BPE can be loaded")
    if reason := next(_reasons(content, model), None):
        raise ValueError(reason)
    numbered: dict[int, bytes] = {}
    vocabulary = model.get("vocab")
    if not isinstance(vocabulary, dict) or not all(type(number) is int for number in vocabulary.values()):
        raise ValueError("its vocabulary is not a table of numbers")
    for token, number in vocabulary.items():
        try:
            numbered[number] = unwritten(token)
        except KeyError:
            if token not in {added["content"] for added in content["added_tokens"]}:
                raise ValueError(f"its token {token!r} is not written in the byte-level alphabet") from None
            numbered[number] = token.encode()
    if len(numbered) != len(vocabulary):
        raise ValueError("two of its tokens have the same number")
    for added in content["added_tokens"]:
        numbered[added["id"]] = added["content"].encode()
    if sorted(numbered) != list(range(len(numbered))):
        raise ValueError(f"its {len(numbered)} tokens do not have the numbers 0 to {len(numbered) - 1}")
    if missing := set(SINGLES) - {unwritten(token) for token in vocabulary if len(token) == 1}:
        raise ValueError(f"it has no token for the byte 0x{min(missing).hex().upper()}")
    return [numbered[number] for number in range(len(numbered))]


def _reasons(content: dict[str, Any], model: dict[str, Any]) -> Iterator[str]:
    """Why the tokenizer is not lossless, or does not give one sequence of tokens."""
    for key in ("normalizer", "truncation", "padding"):
        if content.get(key) is not None:
            yield f"it has a {key}, which changes text"
    for key in ("continuing_subword_prefix", "end_of_word_suffix", "dropout"):
        if model.get(key):
            yield f"its model has a {key}, which is not supported"
    if model.get("byte_fallback"):
        yield "its model falls back to bytes instead of being made of them"
    if not isinstance(content.get("decoder"), dict) or content["decoder"].get("type") != "ByteLevel":
        yield "its decoder is not ByteLevel"
    yield from _pre_tokenizer_reasons(content.get("pre_tokenizer"), last=True)
    added = content.get("added_tokens")
    if not isinstance(added, list):
        yield "it has no list of added tokens"
        return
    for token in added:
        if not isinstance(token, dict) or type(token.get("id")) is not int or not token.get("content"):
            yield "an added token has no number or no content"
        elif not isinstance(token["content"], str):
            yield "the content of an added token is not text"
        elif token.get("lstrip") or token.get("rstrip"):
            yield f"its token {token['content']!r} swallows the white space beside it"


def _pre_tokenizer_reasons(step: Any, last: bool) -> Iterator[str]:
    """Only the last step converts text to bytes, and no step may remove or add any."""
    kind = step.get("type") if isinstance(step, dict) else None
    if kind == "Sequence" and isinstance(step.get("pretokenizers"), list) and step["pretokenizers"]:
        *before, end = step["pretokenizers"]
        for inner in before:
            yield from _pre_tokenizer_reasons(inner, last=False)
        yield from _pre_tokenizer_reasons(end, last)
    elif kind == "ByteLevel" and last:
        if step.get("add_prefix_space"):
            yield "it puts a space before the text"
    elif kind == "Split" and not last:
        if step.get("behavior") not in ("Isolated", "MergedWithPrevious", "MergedWithNext", "Contiguous"):
            yield "it removes what it splits at"
    elif kind != "Digits" or last:
        yield f"its pre-tokenizer {kind} is not known to keep every byte"
