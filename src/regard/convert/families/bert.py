"""BERT (Devlin et al. 2019), and models of its form such as MiniLM."""

from typing import ClassVar

from regard.convert.families.encoders import EncoderFamily

SIZES = {
    "vocabulary": ("vocab_size", 30_522),
    "rows": ("max_position_embeddings", 512),
    "token_types": ("type_vocab_size", 2),
    "layers": ("num_hidden_layers", 12),
    "heads": ("num_attention_heads", 12),
    "width": ("hidden_size", 768),
    "hidden": ("intermediate_size", 3072),
    "activation": ("hidden_act", "gelu"),
    "dropout": ("hidden_dropout_prob", 0.1),
    "attention_dropout": ("attention_probs_dropout_prob", 0.1),
    "eps": ("layer_norm_eps", 1e-12),
}


class Bert(EncoderFamily):
    """Encoders with token types and a pooler, which only classifiers of whole sequences use."""

    kinds = ("bert",)
    names: ClassVar = {"bert": "Bert"}
    sizes = SIZES
    prefix = "bert."
    unused = (
        r"bert\.embeddings\.position_ids|bert\.pooler\..*|cls\.seq_relationship\..*|cls\.predictions\.decoder\.bias"
    )
    keys = """
        embed.weight                     bert.embeddings.word_embeddings.weight
        position.table.weight            bert.embeddings.position_embeddings.weight
        embed_types.weight               bert.embeddings.token_type_embeddings.weight
        norm_embed.gain                  bert.embeddings.LayerNorm.weight
        norm_embed.bias                  bert.embeddings.LayerNorm.bias
        blocks.*.attention.qkv.weight    bert.encoder.layer.*.attention.self.{query,key,value}.weight
        blocks.*.attention.qkv.bias      bert.encoder.layer.*.attention.self.{query,key,value}.bias
        blocks.*.attention.out.weight    bert.encoder.layer.*.attention.output.dense.weight
        blocks.*.attention.out.bias      bert.encoder.layer.*.attention.output.dense.bias
        blocks.*.norm_attention.gain     bert.encoder.layer.*.attention.output.LayerNorm.weight
        blocks.*.norm_attention.bias     bert.encoder.layer.*.attention.output.LayerNorm.bias
        blocks.*.feedforward.up.weight   bert.encoder.layer.*.intermediate.dense.weight
        blocks.*.feedforward.up.bias     bert.encoder.layer.*.intermediate.dense.bias
        blocks.*.feedforward.down.weight bert.encoder.layer.*.output.dense.weight
        blocks.*.feedforward.down.bias   bert.encoder.layer.*.output.dense.bias
        blocks.*.norm_feedforward.gain   bert.encoder.layer.*.output.LayerNorm.weight
        blocks.*.norm_feedforward.bias   bert.encoder.layer.*.output.LayerNorm.bias
    """
    heads: ClassVar = {
        "bert-tokens": """
            transform.dense.weight    cls.predictions.transform.dense.weight
            transform.dense.bias      cls.predictions.transform.dense.bias
            transform.norm.gain       cls.predictions.transform.LayerNorm.weight
            transform.norm.bias       cls.predictions.transform.LayerNorm.bias
            unembed.weight            cls.predictions.decoder.weight
            unembed.bias              cls.predictions.bias
        """,
        "classes": """
            transform.dense.weight    bert.pooler.dense.weight
            transform.dense.bias      bert.pooler.dense.bias
            unembed.weight            classifier.weight
            unembed.bias              classifier.bias
        """,
        "token-classes": """
            unembed.weight            classifier.weight
            unembed.bias              classifier.bias
        """,
        "spans": """
            unembed.weight            qa_outputs.weight
            unembed.bias              qa_outputs.bias
        """,
    }

    def canonical(self, name: str) -> str:
        """The first checkpoints have TensorFlow's names for the two parameters of a norm."""
        return name.replace("LayerNorm.gamma", "LayerNorm.weight").replace("LayerNorm.beta", "LayerNorm.bias")
