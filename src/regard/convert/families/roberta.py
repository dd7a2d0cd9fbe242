"""RoBERTa (Liu et al. 2019): BERT with other heads, whose positions start after the id of the padding token."""

from typing import ClassVar

from regard.convert.families.bert import SIZES, Bert
from regard.convert.families.encoders import EncoderFamily
from regard.convert.family import JsonObject, Settings
from regard.models import EncoderConfig
from regard.models.base import ModelConfig
from regard.nn.heads import BertTokensHeadConfig, HeadConfig
from regard.nn.positions.position import LearnedPositionConfig


class Roberta(EncoderFamily):
    """Also XLM-RoBERTa."""

    kinds = ("roberta", "xlm-roberta")
    names: ClassVar = {"roberta": "Roberta", "xlm-roberta": "XLMRoberta"}
    sizes = SIZES
    prefix = "roberta."
    mask = -1
    unused = r"roberta\.embeddings\.position_ids|roberta\.pooler\..*|lm_head\.decoder\.bias"
    keys = Bert.keys.replace(" bert.", " roberta.")
    heads: ClassVar = {
        "bert-tokens": """
            transform.dense.weight    lm_head.dense.weight
            transform.dense.bias      lm_head.dense.bias
            transform.norm.gain       lm_head.layer_norm.weight
            transform.norm.bias       lm_head.layer_norm.bias
            unembed.weight            lm_head.decoder.weight
            unembed.bias              lm_head.bias
        """,
        "classes": """
            transform.dense.weight    classifier.dense.weight
            transform.dense.bias      classifier.dense.bias
            unembed.weight            classifier.out_proj.weight
            unembed.bias              classifier.out_proj.bias
        """,
        "token-classes": Bert.heads["token-classes"],
        "spans": Bert.heads["spans"],
    }

    def offset(self, given: Settings) -> int:
        return given.get("pad_token_id", 1) + 1

    def head(self, kind: str, given: Settings, activation: str) -> HeadConfig:
        head = super().head(kind, given, activation)
        return BertTokensHeadConfig("gelu") if isinstance(head, BertTokensHeadConfig) else head

    def settings(self, kind: str, config: ModelConfig) -> JsonObject | None:
        fields = super().settings(kind, config)
        if fields is None or not isinstance(config, EncoderConfig):
            return None
        assert isinstance(config.position, LearnedPositionConfig)
        return fields | {"pad_token_id": config.position.offset - 1} if config.position.offset else None
