"""Data: sources, tokenizers and batches. Importing it imports no torch."""

from regard.data.base import Data, DataConfig
from regard.data.batch import IGNORE_INDEX, PairBatch, Specials, TextBatch
from regard.data.origins.cache import cache_folder
from regard.data.origins.origin import Origin
from regard.data.origins.source import Source
from regard.data.sources import SOURCES, find_source
from regard.data.texts.text import TextConfig, TextData
from regard.data.texts.tokens import Counts, Tokens
from regard.data.tokenizers import (
    BpeConfig,
    Bytes,
    BytesConfig,
    Characters,
    CharactersConfig,
    PythonConfig,
    Stream,
    Tokenizer,
    TokenizerConfig,
    WordsConfig,
    load_tokenizer,
)
from regard.data.translation.pairs import PairData, PairsConfig, SentencePairs
