"""Data: sources, tokenizers and batches. Importing it needs neither torch nor a network."""

from regard.data.base import Data, DataConfig
from regard.data.batch import TextBatch
from regard.data.cache import cache_folder
from regard.data.source import Source
from regard.data.sources import SOURCES, find_source
from regard.data.text import TextConfig, TextData, prepare
from regard.data.tokenizer import Characters, Tokenizer, TokenizerConfig, load_tokenizer

__all__ = [
    "SOURCES",
    "Characters",
    "Data",
    "DataConfig",
    "Source",
    "TextBatch",
    "TextConfig",
    "TextData",
    "Tokenizer",
    "TokenizerConfig",
    "cache_folder",
    "find_source",
    "load_tokenizer",
    "prepare",
]
