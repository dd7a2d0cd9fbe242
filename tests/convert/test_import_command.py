"""`regard import`, `export` and `chat` on small models."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from regard.cli import main
from regard.convert.hub import read_hub, write_hub
from regard.data import BytesConfig
from regard.data.chats.template import ChatFormat
from regard.errors import UserError
from regard.models import GPTConfig
from regard.nn.feedforward import SwiGLUConfig

CHATML = "{% for m in messages %}<|{{ m['role'] }}|>{{ m['content'] }}{% endfor %}<|assistant|>"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A small Llama with a byte tokenizer and a chat template, in the hub's layout."""
    monkeypatch.chdir(tmp_path)
    config = GPTConfig(
        vocabulary=256, context=32, layers=2, heads=2, width=16, qk_norm=False, feedforward=SwiGLUConfig()
    )
    torch.manual_seed(1)
    BytesConfig().build([]).save(tmp_path / "tokenizer.json")
    write_hub(tmp_path / "hub", config, config.build(), tmp_path / "tokenizer.json")
    (tmp_path / "hub" / "tokenizer_config.json").write_text(json.dumps({"chat_template": CHATML, "eos_token": "."}))
    return tmp_path / "hub"


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    code = main(list(words))
    done = capsys.readouterr()
    return code, done.out, done.err


def test_a_folder_is_imported_used_and_exported_again(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "import", "hub", "mine")
    assert code == 0
    assert "each used once, none missing" in out
    code, out, _ = run(capsys, "generate", "mine", "--prompt", "ab", "--tokens", "8", "--temperature", "0", "--json")
    assert code == 0
    assert run(capsys, "chat", "mine", "--message", "hello", "--tokens", "5", "--json")[0] == 0
    assert "imported from hub" in run(capsys, "info", "mine")[1]
    assert run(capsys, "export", "mine", "back")[0] == 0
    config, weights, *_ = read_hub(Path("back"))
    assert all(torch.equal(weights[name], one) for name, one in read_hub(folder).weights.items())
    assert config == read_hub(folder).config
    assert run(capsys, "export", "mine", "back.gguf")[0] == 0
    assert run(capsys, "import", "back.gguf", "again")[0] == 0


def test_a_model_without_a_tokenizer_is_imported_and_exported(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "tokenizer.json").unlink()
    assert run(capsys, "import", "hub", "hub")[0] == 0
    assert "step 0, " in run(capsys, "info", "hub")[1]  # the run, not the folder of the same name; nothing was planned
    assert run(capsys, "export", "hub", "back")[0] == 0
    assert all(torch.equal(read_hub(Path("back")).weights[key], one) for key, one in read_hub(folder).weights.items())
    for words in (("generate", "hub", "--prompt", "ab"), ("export", "hub", "back.gguf")):
        code, _, err = run(capsys, *words)
        assert code == 2
        assert "has no tokenizer.json" in err


BROKEN: dict[str, Any] = {
    "an unknown field": ({"clever_trick": 3}, "clever_trick"),
    "another activation": ({"hidden_act": "gelu"}, "hidden_act"),
    "an unknown type": ({"model_type": "elephant"}, "elephant"),
    "other sizes": ({"hidden_size": 32}, "do not belong together"),
    "absurd sizes": ({"num_hidden_layers": 10**12}, "layers"),
    "a size of 64 bits": ({"intermediate_size": 2**63}, "intermediate_size"),
    "a text for a number": ({"vocab_size": "many"}, "vocab_size"),
}


@pytest.mark.parametrize(("change", "word"), BROKEN.values(), ids=BROKEN)
def test_a_config_that_does_not_fit_is_a_sentence(
    folder: Path, capsys: pytest.CaptureFixture[str], change: dict[str, Any], word: str
) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    code, _, err = run(capsys, "import", "hub", "mine")
    assert code == 2
    assert word in err
    assert not Path("runs").exists()


def test_pickles_are_refused(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    code, _, err = run(capsys, "import", "hub", "mine")
    assert (code, "pickle" in err) == (2, True)


HOSTILE = {
    "attributes": "{{ messages.__class__.__mro__ }}",
    "a long string": "{{ 'a' * 1000000000 }}",
    "a format": "{{ '%1000000000d' % 1 }}",
    "a deep loop": "{% for a in x %}" * 4 + "{% endfor %}" * 4,
    "a macro": "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
    "a long filter": "{{ 'a' | center(1000000000) }}",
    "an import": "{% include '/etc/passwd' %}",
}


@pytest.mark.parametrize("template", HOSTILE.values(), ids=HOSTILE)
def test_a_hostile_template_does_nothing(template: str) -> None:
    with pytest.raises(UserError, match="chat template"):
        ChatFormat(template).render([{"role": "user", "content": "hi"}])


def test_a_template_may_count_its_loops_and_keep_values() -> None:
    template = (
        "{% set ns = namespace(last=0) %}{% for m in messages[::-1] %}{% if loop.first %}{% set ns.last = "
        "(messages | length) - 1 - loop.index0 %}{% endif %}{% endfor %}{{ messages[ns.last].content }}"
    )
    assert ChatFormat(template).render([{"role": "user", "content": "hi"}]) == "hi"
    with pytest.raises(UserError, match="chat template"):
        ChatFormat("{% for m in messages %}{{ loop.__class__.__mro__ }}{% endfor %}").render([{"role": "user"}])
