"""Data: sources, tokenizers and batches. Importing it imports no torch."""

from regard.data.base import (
    IGNORE_INDEX,
    ArrayBatch,
    Batch,
    Data,
    DataConfig,
    Example,
    GraphBatch,
    ImageBatch,
    ImageTextBatch,
    LabeledBatch,
    PairBatch,
    PreferenceBatch,
    Specials,
    TextBatch,
)
from regard.data.chats.config import ChatConfig, PreferenceConfig
from regard.data.examples import ExampleData
from regard.data.graphs.graphs import GraphData, GraphsConfig
from regard.data.graphs.links import LinkData, LinksConfig
from regard.data.graphs.nodes import NodeData, NodesConfig
from regard.data.images.clips import ClipsConfig
from regard.data.images.config import ImagesConfig
from regard.data.images.data import ImageData
from regard.data.images.pathfinder import PathfinderConfig, PathfinderData
from regard.data.imagetext.config import ImageTextConfig
from regard.data.imagetext.data import ImageTextData
from regard.data.imported import ImportedConfig
from regard.data.labeled.config import AnswersConfig, ClassesConfig, LabeledConfig, TagsConfig
from regard.data.labeled.data import LabeledData
from regard.data.origins.source import Origin, Source
from regard.data.scenes.data import SceneData, ScenesConfig
from regard.data.scenes.texts import SceneTextData, SceneTextsConfig
from regard.data.series.config import SeriesConfig
from regard.data.series.data import SeriesData
from regard.data.series.labeled import LabeledSeriesConfig
from regard.data.signals.config import SoundsConfig, SpeechConfig
from regard.data.signals.data import SignalData
from regard.data.sources import SOURCES
from regard.data.synthetic.data import SyntheticConfig, SyntheticData
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
