"""An imported encoder-decoder as a run: translated texts, and export."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from oracle import randomized

from regard.cli import main
from regard.generate import BeamSearch
from regard.generate.translation import load_translation_model
from regard.runs import Run

transformers = pytest.importorskip("transformers")
tokenizers = pytest.importorskip("tokenizers")

PIECES = ["<pad>", "</s>", "<unk>", "▁the", "▁quick", "▁fox", "▁dog", "s", "▁", *"abcdefghijklmnopqr"]


def tokenizer() -> Any:
    """As that of T5: pieces with their probabilities; it adds the end token and is not lossless."""
    made = tokenizers.Tokenizer(tokenizers.models.Unigram([(piece, -float(len(piece) < 2)) for piece in PIECES], 2))
    made.normalizer = tokenizers.normalizers.NFKC()
    made.pre_tokenizer, made.decoder = tokenizers.pre_tokenizers.Metaspace(), tokenizers.decoders.Metaspace()
    made.post_processor = tokenizers.processors.TemplateProcessing("$A </s>", None, [("</s>", 1)])
    made.add_special_tokens(PIECES[:2])
    return made


@pytest.mark.parametrize("kind", ["t5", "bart"])
def test_a_run_translates_as_transformers_does(kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sizes = {"vocab_size": 32, "d_model": 24, "pad_token_id": 0, "eos_token_id": 1, "decoder_start_token_id": 0}
    if kind == "t5":
        config = transformers.T5Config(**sizes, num_layers=2, num_heads=4, d_kv=5, d_ff=40)
    else:  # the end token begins a text
        sizes |= {"decoder_start_token_id": 1, "forced_eos_token_id": None, "max_position_embeddings": 64}
        sides = {f"{side}_{name}": n for side in ("encoder", "decoder") for name, n in (("layers", 2), ("ffn_dim", 40))}
        heads = {"encoder_attention_heads": 4, "decoder_attention_heads": 4}
        config = transformers.BartConfig(**sizes, **sides, **heads)
    theirs: Any = randomized(transformers.AutoModelForSeq2SeqLM.from_config(config))
    theirs.save_pretrained(tmp_path / "theirs")
    tokenizer().save(str(tmp_path / "theirs/tokenizer.json"))
    assert main(["import", str(tmp_path / "theirs"), "imported", "--runs", str(tmp_path / "runs")]) == 0
    assert "regard translate" in capsys.readouterr().out
    run = tmp_path / "runs/imported"
    texts = ["the quick fox", "dogs", "the fox and the dog"]
    translator = load_translation_model(Run.open(run)).translator(strategy=BeamSearch(1), max_length=10)
    found = [line.translations[0].hypothesis.tokens for line in translator.translate(texts)]
    for text, tokens in zip(texts, found, strict=True):
        source = torch.tensor([tokenizer().encode(text).ids])
        want = theirs.generate(source, max_new_tokens=10, num_beams=1, do_sample=False, suppress_tokens=[0])
        row = want[0, 1:].tolist()
        assert tokens == (row[: row.index(1)] if 1 in row else row)
    assert main(["translate", str(run), *texts, "--beam", "1", "--max-length", "10"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [" ".join(tokenizer().decode([t for t in one if t < 27]).split()) for one in found] == lines
    assert main(["export", str(run), str(tmp_path / "ours")]) == 0
    written = json.loads((tmp_path / "ours/config.json").read_text())
    assert [written[f"{name}_token_id"] for name in ("pad", "decoder_start", "eos")] == [
        0,
        sizes["decoder_start_token_id"],
        1,
    ]
