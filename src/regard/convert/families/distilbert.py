"""DistilBERT (Sanh et al. 2019): BERT without token types and pooler."""

from typing import ClassVar

from regard.convert.families.bert import Bert
from regard.convert.families.encoders import EncoderFamily
from regard.convert.family import Settings
from regard.models import EncoderConfig


class DistilBert(EncoderFamily):
    """Encoders distilled from BERT, with names of their own."""

    kinds = ("distilbert",)
    names: ClassVar = {"distilbert": "DistilBert"}
    sizes: ClassVar = {
        "vocabulary": ("vocab_size", 30_522),
        "rows": ("max_position_embeddings", 512),
        "layers": ("n_layers", 6),
        "heads": ("n_heads", 12),
        "width": ("dim", 768),
        "hidden": ("hidden_dim", 3072),
        "activation": ("activation", "gelu"),
        "dropout": ("dropout", 0.1),
        "attention_dropout": ("attention_dropout", 0.1),
    }
    prefix = "distilbert."
    dense = "relu"
    unused = r"distilbert\.embeddings\.position_ids"
    keys = """
        embed.weight                     distilbert.embeddings.word_embeddings.weight
        position.table.weight            distilbert.embeddings.position_embeddings.weight
        norm_embed.gain                  distilbert.embeddings.LayerNorm.weight
        norm_embed.bias                  distilbert.embeddings.LayerNorm.bias
        blocks.*.attention.qkv.weight    distilbert.transformer.layer.*.attention.{q,k,v}_lin.weight
        blocks.*.attention.qkv.bias      distilbert.transformer.layer.*.attention.{q,k,v}_lin.bias
        blocks.*.attention.out.weight    distilbert.transformer.layer.*.attention.out_lin.weight
        blocks.*.attention.out.bias      distilbert.transformer.layer.*.attention.out_lin.bias
        blocks.*.norm_attention.gain     distilbert.transformer.layer.*.sa_layer_norm.weight
        blocks.*.norm_attention.bias     distilbert.transformer.layer.*.sa_layer_norm.bias
        blocks.*.feedforward.up.weight   distilbert.transformer.layer.*.ffn.lin1.weight
        blocks.*.feedforward.up.bias     distilbert.transformer.layer.*.ffn.lin1.bias
        blocks.*.feedforward.down.weight distilbert.transformer.layer.*.ffn.lin2.weight
        blocks.*.feedforward.down.bias   distilbert.transformer.layer.*.ffn.lin2.bias
        blocks.*.norm_feedforward.gain   distilbert.transformer.layer.*.output_layer_norm.weight
        blocks.*.norm_feedforward.bias   distilbert.transformer.layer.*.output_layer_norm.bias
    """
    heads: ClassVar = {
        "bert-tokens": """
            transform.dense.weight    vocab_transform.weight
            transform.dense.bias      vocab_transform.bias
            transform.norm.gain       vocab_layer_norm.weight
            transform.norm.bias       vocab_layer_norm.bias
            unembed.weight            vocab_projector.weight
            unembed.bias              vocab_projector.bias
        """,
        "classes": """
            transform.dense.weight    pre_classifier.weight
            transform.dense.bias      pre_classifier.bias
            unembed.weight            classifier.weight
            unembed.bias              classifier.bias
        """,
        "token-classes": Bert.heads["token-classes"],
        "spans": Bert.heads["spans"],
    }

    def config(self, kind: str, given: Settings) -> EncoderConfig:
        given.ignore("sinusoidal_pos_embds", "qa_dropout", "seq_classif_dropout")  # the table has the waves
        return super().config(kind, given)
