"""Tasks: the loss of a batch, as named sums and counts."""

from regard.tasks.base import Task, TaskConfig, Term
from regard.tasks.language import LanguageConfig, LanguageTask
from regard.tasks.masked import MaskedTokens, MaskedTokensConfig
from regard.tasks.translation import TranslationConfig, TranslationTask
