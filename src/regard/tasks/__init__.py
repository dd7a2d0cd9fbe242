"""Tasks: the loss of a batch, as named sums and counts."""

from regard.tasks.arrays import ArrayClassificationConfig
from regard.tasks.base import Measured, Predicting, Prediction, Task, TaskConfig, Term
from regard.tasks.captions import CaptionsConfig, CaptionsTask
from regard.tasks.contrastive import ContrastiveConfig, ContrastiveTask
from regard.tasks.detection import DetectionConfig
from regard.tasks.forecast import ForecastConfig, ForecastTask
from regard.tasks.graphs import LinkPredictionConfig, NodeClassificationConfig
from regard.tasks.images import ImageClassificationConfig
from regard.tasks.labeled import AnsweringConfig, ClassificationConfig, TaggingConfig
from regard.tasks.language import LanguageConfig, LanguageTask
from regard.tasks.masked import MaskedTokens, MaskedTokensConfig
from regard.tasks.masked_patches import MaskedPatchesConfig
from regard.tasks.matching import MatchingConfig, MatchingTask
from regard.tasks.preference import PreferenceTask, PreferenceTaskConfig
from regard.tasks.regression import RegressionConfig, RegressionTask
from regard.tasks.solve import SolveConfig, SolveTask
from regard.tasks.speech import SpeechTaskConfig
from regard.tasks.text_to_image import TextToImageTaskConfig
from regard.tasks.translation import TranslationConfig, TranslationTask
