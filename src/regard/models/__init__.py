"""Models: assemblies only. A model file reads like the paper's figure."""

from regard.models.base import ModelConfig
from regard.models.gpt import GPT, GPTConfig, State
from regard.models.presets import PRESETS, describe

__all__ = ["GPT", "PRESETS", "GPTConfig", "ModelConfig", "State", "describe"]
