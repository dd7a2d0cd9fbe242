"""What the families of encoders have in common: one list of sizes, and a key map for each head."""

from typing import Any, ClassVar

from regard.convert.family import Family, JsonObject, Settings
from regard.errors import UserError
from regard.models import EncoderConfig
from regard.models.base import Model, ModelConfig
from regard.nn.blocks.block import PostNormConfig
from regard.nn.feedforward import FeedForwardConfig, GELUConfig, GELUTanhConfig, ReLUConfig, SiLUConfig
from regard.nn.heads import (
    BertTokensHeadConfig,
    ClassesHeadConfig,
    HeadActivation,
    HeadConfig,
    LabeledHeadConfig,
    NoHeadConfig,
    SpansHeadConfig,
    TokenClassesHeadConfig,
)
from regard.nn.norm import LayerNormConfig
from regard.nn.positions.position import LearnedPositionConfig

ACTIVATIONS: dict[str, type[FeedForwardConfig]] = {
    "gelu": GELUConfig,
    "gelu_new": GELUTanhConfig,
    "gelu_pytorch_tanh": GELUTanhConfig,
    "relu": ReLUConfig,
    "silu": SiLUConfig,
    "swish": SiLUConfig,
}

#: How the names of the classes in `transformers` end, and the kind of our head; the first of a kind is written.
HEADS = {
    "ForMaskedLM": "bert-tokens",
    "ForPreTraining": "bert-tokens",
    "ForSequenceClassification": "classes",
    "ForTokenClassification": "token-classes",
    "ForQuestionAnswering": "spans",
    "Model": "none",
}


class EncoderFamily(Family):
    """Base class: encoders with LayerNorm after each layer, learned positions and biases."""

    names: ClassVar[dict[str, str]]  # model types, and how the names of their classes in `transformers` begin
    sizes: ClassVar[dict[str, tuple[str, Any]]]  # our names of the sizes, theirs, and their defaults
    heads: ClassVar[dict[str, str]]  # the key map of each kind of head
    dense: ClassVar[HeadActivation] = "tanh"  # of the dense layer before a classifier
    mask: ClassVar[int] = 103  # the id of the mask token where no tokenizer names another; -1: the last

    def config(self, kind: str, given: Settings) -> EncoderConfig:
        found = {ours: given.get(theirs, default) for ours, (theirs, default) in self.sizes.items()}
        for ours in ("vocabulary", "rows", "layers", "heads", "width", "hidden"):
            found[ours] = given.size(*self.sizes[ours])
        given.require(self.sizes["activation"][0], *ACTIVATIONS)
        given.require("is_decoder", False)
        given.require("add_cross_attention", False)
        given.require("position_embedding_type", "absolute")
        given.ignore("classifier_dropout", "output_past", "tie_weights_")
        offset, vocabulary = self.offset(given), found["vocabulary"]
        if found["rows"] <= offset:
            raise UserError(
                f"config.json: {found['rows']} positions leave none for tokens; the first {offset} have none"
            )
        last = vocabulary - 1
        mask = given.get("mask_token_id", last if self.mask < 0 else min(self.mask, last))
        feedforward = ACTIVATIONS[found["activation"]]
        return EncoderConfig(
            vocabulary=vocabulary,
            mask_token=mask,
            token_types=found.get("token_types"),
            embedding_norm=True,
            context=found["rows"] - offset,
            layers=found["layers"],
            heads=found["heads"],
            width=found["width"],
            dropout=float(found["dropout"]),
            attention_dropout=float(found["attention_dropout"]),
            tied=given.get("tie_word_embeddings", True),
            bias=True,
            qk_norm=False,
            zero_init=False,
            norm=LayerNormConfig(eps=float(found.get("eps", 1e-12))),
            position=LearnedPositionConfig(offset),
            feedforward=feedforward(ratio=found["hidden"] / found["width"]),
            block=PostNormConfig(),
            head=self.head(kind, given, feedforward.kind),
        )

    def offset(self, given: Settings) -> int:
        """The row of the table of positions that the first token has."""
        return 0

    def head(self, kind: str, given: Settings, activation: str) -> HeadConfig:
        """The head by the first of `architectures`; ``activation``: that of the feed-forward networks."""
        given_names = given.get("architectures", [])
        name = given_names[0] if given_names else f"{self.names[kind]}Model"
        head = HEADS.get(str(name).removeprefix(self.names[kind]))
        if head is None:
            options = ", ".join(self.names[kind] + end for end in HEADS)
            raise UserError(f"config.json: the architecture {name} cannot be imported; known are {options}")
        labels = read_labels(given)
        match head:
            case "bert-tokens":
                return BertTokensHeadConfig(activation)  # type: ignore[arg-type] (a kind of network names it)
            case "classes":
                return ClassesHeadConfig(*labels, pool="cls", dense=self.dense)
            case "token-classes":
                return TokenClassesHeadConfig(*labels)
            case "spans":
                if labels[0] != 2:
                    raise UserError(f"config.json: spans have 2 outputs, a start and an end, not {labels[0]}")
                return SpansHeadConfig()
            case _:
                return NoHeadConfig()

    def settings(self, kind: str, config: ModelConfig) -> JsonObject | None:
        if not isinstance(config, EncoderConfig) or not isinstance(config.norm, LayerNormConfig):
            return None
        if isinstance(config.head, ClassesHeadConfig) and config.head.pool == "mean":
            raise UserError(
                "the classifiers of published encoders read the first token, and this one reads the mean of all; "
                "to export a classifier, train it with --task.pool cls"
            )
        position = config.position
        names = [name for name, own in ACTIVATIONS.items() if own is type(config.feedforward)]
        ends = [end for end, head in HEADS.items() if head == config.head.kind]
        if not isinstance(position, LearnedPositionConfig) or not names or not ends or config.mask_token is None:
            return None
        dropout = config.dropout if config.attention_dropout is None else config.attention_dropout
        ours = {"rows": config.context + position.offset, "hidden": round(config.feedforward.ratio * config.width)}
        ours |= {"activation": names[0], "eps": config.norm.eps, "attention_dropout": dropout}
        values = {**vars(config), **ours}
        if values["token_types"] is None and "token_types" in self.sizes:
            return None
        fields: JsonObject = {"architectures": [self.names[kind] + ends[0]]}
        fields |= {theirs: values[name] for name, (theirs, _) in self.sizes.items()}
        fields |= {"mask_token_id": config.mask_token, "tie_word_embeddings": config.tied}
        if isinstance(config.head, LabeledHeadConfig):
            fields |= write_labels(config.head)
        return fields

    def table(self, model: Model) -> str:
        assert isinstance(model.config, EncoderConfig)
        return self.keys + self.heads.get(model.config.head.kind, "")

    def bare(self, config: ModelConfig) -> bool:
        return isinstance(config, EncoderConfig) and isinstance(config.head, NoHeadConfig)

    def tied(self, config: ModelConfig) -> dict[str, str]:
        assert isinstance(config, EncoderConfig)
        return {"unembed.weight": "embed.weight"} if config.tied and config.head.predicts_tokens else {}


def read_labels(given: Settings) -> tuple[int, tuple[str, ...]]:
    """How many classes there are, and their names; () if they have none."""
    names = given.get("id2label", {})
    count = given.get("num_labels", len(names) or 2)
    if not names:
        return count, ()
    labels = [names.get(str(number)) for number in range(len(names))]
    if len(names) != count or not all(isinstance(label, str) for label in labels):
        raise UserError(f"config.json: id2label does not name the classes 0 to {count - 1}; correct it")
    return count, () if labels == [f"LABEL_{number}" for number in range(count)] else tuple(labels)


def write_labels(head: LabeledHeadConfig) -> JsonObject:
    """The fields of `config.json` that give the number of classes and their names."""
    return {
        "id2label": {str(number): label for number, label in enumerate(head.names)},
        "label2id": {label: number for number, label in enumerate(head.names)},
    }
