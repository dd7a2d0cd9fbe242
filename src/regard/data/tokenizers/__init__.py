"""Tokenizers: lossless conversion of text to token ids. One file per kind; see docs/tokenizers.md."""

from regard.data.tokenizers.base import Stream, Tokenizer, TokenizerConfig, write_json
from regard.data.tokenizers.bpe import BpeConfig
from regard.data.tokenizers.byte_level import ByteLevel
from regard.data.tokenizers.bytes import Bytes, BytesConfig
from regard.data.tokenizers.characters import Characters, CharactersConfig
from regard.data.tokenizers.file import load_tokenizer
from regard.data.tokenizers.published import EncodedText, PublishedTokenizer
from regard.data.tokenizers.python import Python, PythonConfig
from regard.data.tokenizers.word_split import regroup
from regard.data.tokenizers.words import WordsConfig
