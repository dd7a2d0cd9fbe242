"""Data: sources, tokenizers and batches. Importing it imports no torch."""

from regard.data.base import (
    IGNORE_INDEX,
    ArrayBatch,
    Batch,
    Data,
    DataConfig,
    Example,
    ImageBatch,
    LabeledBatch,
    PairBatch,
    PreferenceBatch,
    Specials,
    TextBatch,
)
from regard.data.chats.config import ChatConfig, PreferenceConfig
from regard.data.examples import ExampleData
from regard.data.images.config import ImagesConfig
from regard.data.images.data import ImageData
from regard.data.imported import ImportedConfig
from regard.data.labeled.config import AnswersConfig, ClassesConfig, LabeledConfig, TagsConfig
from regard.data.labeled.data import LabeledData
from regard.data.origins.source import Origin, Source
from regard.data.signals.config import SoundsConfig, SpeechConfig
from regard.data.signals.data import SignalData
from regard.data.sources import SOURCES
from regard.data.texts.config import TextConfig
from regard.data.texts.text import TextData
from regard.data.tokenizers import (
    BpeConfig,
    Bytes,
    BytesConfig,
    Characters,
    CharactersConfig,
    PythonConfig,
    Tokenizer,
    TokenizerConfig,
    WordsConfig,
    load_tokenizer,
)
from regard.data.translation.pairs import PairData, PairsConfig, SentencePairs
