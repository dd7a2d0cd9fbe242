"""Tasks: what a batch is worth. A task turns a batch into named sums and counts, never into means."""

from regard.tasks.base import Task, TaskConfig, Term
from regard.tasks.language import Language, LanguageConfig
from regard.tasks.masked import MaskedTokens, MaskedTokensConfig
from regard.tasks.translation import Translation, TranslationConfig

__all__ = [
    "Language",
    "LanguageConfig",
    "MaskedTokens",
    "MaskedTokensConfig",
    "Task",
    "TaskConfig",
    "Term",
    "Translation",
    "TranslationConfig",
]
