"""Each example of docs/extend is one file outside the package: trained, resumed, generated from, proven and looked at.

Every example runs in a process of its own: what it registers must not reach other tests.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from regard.config import load_parts
from regard.errors import UserError
from warm_process import python, regard

EXTEND = Path(__file__).parents[2] / "docs" / "extend"
TINY = "--model.width 16 --model.context 16 --data.batch 4 --train.steps 4 --train.save_every 2 --train.log_every 1"
GPT = f"--data.path text.txt --model.layers 1 --model.heads 2 --model.attention_dropout 0 {TINY}"
USE = ["resume one --steps 6", "generate one --tokens 5", "prove one --claims future,step,padding", "info one"]
LOOK = "look one --text 'to be or not'"

#: By example, the commands that use it; `--with FILE` is added to each.
EXAMPLES = {
    "mask": [
        "mask 'causal & logsparse'",
        f"train --name one {GPT} --model.attention masked --model.attention.mask 'logsparse | window(2)'",
        *USE,
        LOOK,
    ],
    "bias": [f"train --name one {GPT} --model.attention log-distance --model.position none", *USE, LOOK],
    "score": [f"train --name one {GPT} --model.attention cosine", *USE, LOOK],
    "normalizer": [
        f"train --name one {GPT} --model.attention softmax --model.attention.normalizer quiet",
        *USE,
        LOOK,
    ],
    "mechanism": [f"train --name one {GPT} --model.attention uniform", *USE, LOOK],
    "position": [f"train --name one {GPT} --model.position clock --model.position.periods 2,3", *USE, LOOK],
    "block": [f"train --name one {GPT} --model.block layer-scale", *USE, LOOK],
    "model": [f"train --name one --data.path text.txt --model bengio {TINY}", *USE],
    "tokenizer": [f"train --name one {GPT} --data.tokenizer digraphs --data.tokenizer.pairs 3", *USE, LOOK],
    "data_source": [
        "data",
        f"train --name one {GPT.replace('--data.path text.txt', '--data.source sums')}",
        *USE,
        "look one --text 1+1",
    ],
    "task": [f"train --name one {GPT} --task focal", *USE, LOOK],
    "schedule": [f"train --name one {GPT} --train.schedule restarts", *USE],
    "claim": [f"train --name one {GPT}", "prove one --claims rows", "generate one --tokens 5"],
    "check": [f"train --name one --doctor {GPT}", "resume one --steps 8", "generate one --tokens 5"],
    "tiny_recipe": [
        "recipes",
        "recipes tiny-recipe",
        "train tiny-recipe --name one --data.path text.txt",
        "resume one --steps 22",
        *USE[1:],
        LOOK,
    ],
}
PROGRAM = """
import shlex, sys
from regard.cli import main
for command in sys.argv[2:]:
    assert main([*shlex.split(command), "--with", sys.argv[1]]) == 0, command
"""


@pytest.fixture
def room(tmp_path: Path) -> Path:
    (tmp_path / "text.txt").write_text("to be or not to be, that is the question\n" * 40)
    return tmp_path


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_needs_no_other_edit(name: str, room: Path) -> None:
    done = python(PROGRAM, room, str(EXTEND / f"{name}.py"), *EXAMPLES[name])
    assert done.returncode == 0, done.stderr[-2000:]
    recorded = json.loads((room / "runs" / "one" / "environment.json").read_text())["parts"]
    assert recorded[0]["file"] == str(EXTEND / f"{name}.py")
    assert recorded[0]["parts"]


def test_every_file_is_an_example_under_60_lines_with_its_command() -> None:
    files = sorted(EXTEND.glob("*.py"))
    assert [file.stem for file in files] == sorted(EXAMPLES)
    for file in files:
        text = file.read_text()
        assert len(text.splitlines()) < 60, file.name
        assert re.search(rf"\n *regard .*--with {file.name}", text), file.name
        assert file.name in (EXTEND / "README.md").read_text()


def test_a_part_from_outside_is_named_everywhere(room: Path) -> None:
    (room / "my_parts.py").write_text((EXTEND / "mechanism.py").read_text())
    train = ["train", "--name", "one", *GPT.split(), "--model.attention", "uniform"]
    done = regard(room, *train)
    assert done.returncode == 2
    assert '"uniform"' in done.stderr

    help = regard(room, "train", "--help", "--with", "my_parts.py").stdout
    assert "parts from my_parts.py:\n  attention uniform" in help
    keys = regard(room, "recipes", "shakespeare", "--with", "my_parts.py").stdout
    assert re.search(r"--model.attention .*uniform \(my_parts.py\)", keys)
    misspelled = regard(room, *train[:-1], "uniforms", "--with", "my_parts.py").stderr
    assert '"uniform" (my_parts.py); write `--model.attention uniform`' in misspelled

    (room / "pyproject.toml").write_text('[tool.regard]\nwith = ["my_parts.py"]\n')
    assert regard(room, *train).returncode == 0
    assert regard(room, "generate", "one", "--tokens", "3").returncode == 0
    (room / "pyproject.toml").unlink()
    for command in ("resume one", "generate one", "prove one", "look one --text to", "evaluate one", "report one"):
        done = regard(room, *command.split())
        assert done.returncode == 2, command
        assert "runs/one uses attention 'uniform' from my_parts.py; give --with my_parts.py" in done.stderr
    assert regard(room, "info", "one").returncode == 0

    suggested = json.loads(regard(room, "report", "one", "--json", "--with", "my_parts.py").stdout)["next"]
    assert suggested.endswith(" --with my_parts.py")
    done = regard(room, "resume", "one", "--with", "my_parts.py")
    assert "train it further: regard resume runs/one --steps 8 --with my_parts.py" in done.stderr

    with (room / "my_parts.py").open("a") as file:
        file.write("# changed\n")
    done = regard(room, "generate", "one", "--tokens", "3", "--with", "my_parts.py")
    assert done.returncode == 0
    assert done.stderr.count("my_parts.py has changed since runs/one was trained with it") == 1


TAKEN = {
    "kind": (
        "from dataclasses import dataclass\nfrom regard.train import ScheduleConfig\n\n"
        '@dataclass(frozen=True)\nclass Mine(ScheduleConfig, kind="cosine"):\n    pass\n',
        '(line 5): ScheduleConfig has the kind "cosine" already (regard.train.',
    ),
    "mask": (
        "from dataclasses import dataclass\nfrom regard.attention import Mask\n\n"
        "@dataclass(frozen=True)\nclass Causal(Mask):\n    pass\n",
        "there is a mask 'causal' already (regard.attention.masks",
    ),
    "recipe": ("import regard.recipes\n\ndef recipe():\n    pass\n", "there is a recipe 'shakespeare' already"),
    "no dataclass": (
        'from regard.train import ScheduleConfig\n\nclass Mine(ScheduleConfig, kind="mine"):\n    period: int = 3\n',
        "Mine is not a dataclass; write @dataclass(frozen=True) above its class",
    ),
    "fields of a subclass": (
        'from regard.attention import SoftmaxConfig\n\nclass Mine(SoftmaxConfig, kind="mine"):\n    period: int = 3\n',
        "Mine is not a dataclass",
    ),
    "mask without dataclass": (
        "from regard.attention import Mask\n\nclass Mine(Mask):\n    pass\n",
        "Mine is not a dataclass",
    ),
    "mistake": ("import regard\n\n1 / 0\n", "(line 3): ZeroDivisionError: division by zero"),
    "syntax": ("x = = 1\n", "(line 1): SyntaxError"),
}


@pytest.mark.parametrize("name", TAKEN)
def test_a_file_that_cannot_be_loaded_is_one_sentence(name: str, room: Path) -> None:
    source, message = TAKEN[name]
    (room / "shakespeare.py").write_text(source)
    done = regard(room, "recipes", "--with", "shakespeare.py")
    assert done.returncode == 2
    assert done.stderr.startswith("regard: shakespeare.py cannot be loaded")
    assert message in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_a_file_without_parts_is_an_error(room: Path) -> None:
    (room / "empty.py").write_text("import regard\n")
    done = regard(room, "recipes", "--with", "empty.py")
    assert done.returncode == 2
    assert done.stderr.startswith("regard: empty.py defines no part; docs/extend has an example of each kind")


def test_only_python_files_outside_of_runs_are_loaded(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"must end in \.py"):
        load_parts(tmp_path / "parts.txt")
    with pytest.raises(UserError, match="cannot be read"):
        load_parts(tmp_path / "parts.py")
    (tmp_path / "environment.json").write_text("{}")
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "parts.py").write_text("")
    with pytest.raises(UserError, match="is in the folder of a run"):
        load_parts(tmp_path / "code" / "parts.py")


def test_an_installed_package_can_bring_parts(room: Path) -> None:
    (room / "site" / "my_package").mkdir(parents=True)
    (room / "site" / "my_package" / "__init__.py").write_text("")
    (room / "site" / "my_package" / "parts.py").write_text((EXTEND / "schedule.py").read_text())
    info = room / "site" / "my_package-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: my-package\nVersion: 1\n")
    (info / "entry_points.txt").write_text("[regard.parts]\nparts = my_package.parts\n")
    code = "import sys; sys.path.insert(0, 'site'); from regard.cli import main; main(['train', '--help'])"
    done = python(code, room)
    assert "parts from my-package:\n  schedule restarts" in done.stdout, done.stderr
