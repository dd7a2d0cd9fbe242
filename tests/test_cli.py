"""The command line as a person uses it: real processes where imports matter, `main` elsewhere."""

import json
import subprocess
import sys
from dataclasses import dataclass
from typing import Literal

import pytest

from regard.cli import COMMANDS, main
from regard.commands import options_of
from regard.commands.recipes import listing
from regard.commands.train import TrainOptions, read_experiment
from regard.config import argument, option, override, parse, to_toml
from regard.config.command_line import help_text, options_of_table, read_options
from regard.config.table import Table
from regard.errors import UserError
from regard.recipes import get, names
from regard.runs import Run, environment

TINY = [
    *("--model.layers", "1", "--model.heads", "2", "--model.width", "16", "--model.context", "16"),
    *("--data.batch", "4", "--train.steps", "6", "--train.save_every", "3", "--train.log_every", "1"),
]


@pytest.fixture
def room(tmp_path, monkeypatch):
    """An empty folder with a text in it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "cache"))
    (tmp_path / "text.txt").write_text("to be or not to be, that is the question\n" * 40)
    return tmp_path


def python(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout


@pytest.mark.parametrize(
    "arguments", [["--help"], ["--version"], *[[name, "--help"] for name in COMMANDS], ["recipes"]]
)
def test_help_never_imports_torch(arguments):
    code = f"""
import sys
from regard.cli import main
try: main({arguments!r})
except SystemExit: pass
print("torch" in sys.modules, "numpy" in sys.modules)
"""
    assert python(code).splitlines()[-1] == "False False"


def test_importing_regard_is_light():
    assert python("import sys, regard; print(any(m in sys.modules for m in ('torch', 'numpy', 'rich')))") == ("False\n")


def test_train_info_generate(room, capsys):
    assert main(["train", "shakespeare", "--name", "one", "--data.path", "text.txt", "--json", *TINY]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["step"] == 6
    assert result["validation_loss"] > 0
    assert (room / "runs" / "one" / "tokenizer.json").exists()

    assert main(["info", "one", "--json"]) == 0
    about = json.loads(capsys.readouterr().out)
    assert about["steps"] == about["of"] == 6
    assert about["checkpoints"] == [3, 6]

    assert main(["info"]) == 0  # the newest run
    assert "step 6 of 6" in capsys.readouterr().out

    words = ["generate", "runs/one", "--prompt", "to be", "--tokens", "9", "--seed", "3"]
    assert main(words) == 0
    text = capsys.readouterr().out
    assert text.startswith("to be")
    assert len(text) == len("to be") + 9 + 1
    assert main(words) == 0
    assert capsys.readouterr().out == text

    assert main(["generate", "--prompt", "to", "or not", "--tokens", "4", "--temperature", "0", "--json"]) == 0
    texts = json.loads(capsys.readouterr().out)["texts"]
    assert [t["prompt"] for t in texts] == ["to", "or not"]
    assert all(len(t["text"]) == 4 for t in texts)


def test_a_toml_file_is_an_experiment_too(room, capsys):
    (room / "mine.toml").write_text('[data]\nkind = "text"\npath = "text.txt"\n[train]\nsteps = 2\n')
    assert main(["train", "mine.toml", "--model.width", "16", "--model.context", "8", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["path"].endswith("mine-1")


def test_resume_of_a_finished_run_does_nothing_more(room, capsys):
    assert main(["train", "shakespeare", "--name", "one", "--data.path", "text.txt", "--json", *TINY]) == 0
    first = json.loads(capsys.readouterr().out)
    assert main(["resume", "one", "--json"]) == 0
    shown = capsys.readouterr()
    again = json.loads(shown.out)
    assert (again["step"], again["validation_loss"]) == (first["step"], first["validation_loss"])
    assert "runs/one is finished: all 6 steps are done" in shown.err
    assert "going on" not in shown.err
    assert "done:" not in shown.err
    assert shown.err.splitlines()[-1] == "train it further: regard resume runs/one --steps 12"


def test_resume_can_make_a_run_longer(room, capsys):
    assert main(["train", "shakespeare", "--name", "one", "--data.path", "text.txt", *TINY]) == 0
    before = (room / "runs" / "one" / "metrics.jsonl").read_text()
    samples = (room / "runs" / "one" / "samples.jsonl").read_text()
    capsys.readouterr()
    assert main(["resume", "one", "--steps", "9", "--json"]) == 0
    shown = capsys.readouterr()
    assert (json.loads(shown.out)["step"], json.loads(shown.out)["steps"]) == (9, 9)
    assert "resuming from step 6 of 9" in shown.err
    assert "train it further" not in shown.err
    assert (room / "runs" / "one" / "metrics.jsonl").read_text().startswith(before)
    assert (room / "runs" / "one" / "samples.jsonl").read_text().startswith(samples)
    assert main(["info", "one", "--json"]) == 0
    about = json.loads(capsys.readouterr().out)
    assert about["steps"] == about["of"] == 9
    config = (room / "runs" / "one" / "config.toml").read_text()
    assert "6 steps planned, 9 from step 6 on; the schedule follows the newer plan" in config


def test_recipes_list_every_key(capsys):
    assert main(["recipes", "shakespeare"]) == 0
    shown = capsys.readouterr().out
    for key in ("--model.width", "--train.optimizer", "--data.path", "--seed"):
        assert key in shown


@pytest.mark.parametrize("name", names())
def test_what_recipes_list_can_be_set_and_is_explained(name):
    """Written as options, the listed values are the recipe; what only a run writes is not among them."""
    recipe = get(name)
    rows = listing(recipe)
    assert [option for option, _, help in rows if not help.partition("(")[0]] == []
    listed = {option: value for option, value, _ in rows}
    assert "--train.budget" not in listed
    assert listed.pop("--model.vocabulary", "by the data") == "by the data"
    settable = [f"{option}={value}" for option, value in listed.items() if value != "by the data" and "'" not in value]
    assert override(recipe, settable) == recipe


@pytest.mark.parametrize("command", ["recipes", "study", "mask"])
def test_lists_have_two_columns(capsys, command):
    assert main([command]) == 0
    shown = capsys.readouterr().out
    lines = [line for line in shown.splitlines() if not line.startswith("&")]
    assert len({line.rindex("  ", 0, 32) for line in lines}) == 1, lines
    assert "``" not in shown  # a notation of docstrings


def test_the_help_of_a_choice_is_one_sentence_for_users():
    helps = [help for _, _, help in listing(get("shakespeare"))]
    assert not [help for help in helps if ". " in help]


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("--data-path", "--data.path"),
        ("--model-width", "--model.width"),
        ("--learning-rate", "--train.optimizer.lr"),
        ("--block_size", "--model.context"),
        ("--batch-size", "--data.batch"),
        ("--max_iters", "--train.steps"),
        ("--n_layer", "--model.layers"),
    ],
)
def test_options_of_other_libraries_are_understood(capsys, written, meant):
    assert main(["train", written, "3"]) == 2
    assert f"did you mean {meant}?" in capsys.readouterr().err


def test_the_overview_names_debug(capsys):
    assert main(["--help"]) == 0
    assert "--debug" in capsys.readouterr().out


BAD = {
    "unknown command": (["trian"], "there is no command 'trian'"),
    "unknown recipe": (["train", "shakespear"], "did you mean shakespeare"),
    "missing toml": (["train", "no.toml"], "no.toml"),
    "unknown key": (["train", "--model.widht", "3"], "model.width"),
    "wrong type": (["train", "--model.width", "wide"], "model.width"),
    "not divisible": (["train", "--model.width", "130"], "not divisible by 4 heads"),
    "missing file": (["train", "--data.path", "nowhere.txt"], "nowhere.txt"),
    "bad kind": (["train", "--model.position", "rotaty"], "rotary"),
    "neither a run nor a recipe": (
        ["prove", "nothing"],
        "'nothing' is neither a run in runs nor a recipe; choose from",
    ),
    "no such run": (["info", "nothing"], "there is no run"),
    "no run at all": (["generate"], "there is no run in runs; train one first (regard train)"),
    "no run to serve": (["serve"], "there is no run in runs; train one first (regard train)"),
    "no run to translate with": (["translate", "hello"], "there is no run in runs that translates 'hello'"),
    "no seconds": (["train", "--train.seconds", "abc"], "write `--train.seconds 120`"),
    "override elsewhere": (["info", "--model.width", "3"], "only `regard train`"),
    "no tokens": (["generate", "--tokens", "0"], "--tokens must be"),
}


@pytest.mark.parametrize("case", BAD)
def test_a_mistake_is_one_sentence_and_exit_code_2(room, capsys, case):
    arguments, words = BAD[case]
    assert main(arguments) == 2
    said = capsys.readouterr().err
    assert words in said
    assert "Traceback" not in said
    assert not list(room.glob("runs/*/checkpoints/*"))


def test_a_missing_text_leaves_no_run_behind(room, capsys):
    assert main(["train", "--data.path", "nowhere.txt"]) == 2
    assert not (room / "runs").exists()
    capsys.readouterr()


def test_one_parser_separates_options_and_keys():
    given = ["shakespeare", "--name", "x", "--model.width", "8", "--no-model.bias", "--a.b=c", "--json", "--c.d", "-3"]
    found = parse([*given, "--with", "a.py", "--with=b.py"], Table(TrainOptions))
    assert found.positional == ["shakespeare"]
    assert found.options == {"name": "x", "json": True, "with_": ["a.py", "b.py"]}
    assert found.keys == {"model.width": "8", "model.bias": False, "a.b": "c", "c.d": "-3"}


@dataclass(frozen=True)
class Every:
    """Every kind of option."""

    word: str = argument("w", "a word")
    rest: tuple[str, ...] = argument((), "more words")
    top_k: int | None = option(None, "a number")
    many: tuple[int, ...] = option((), "numbers")
    browser: bool = option(True, "do not open it")
    causal: bool | None = option(None, "yes or no")
    way: Literal["a", "b"] = option("a", "a choice")
    rate: float = option(0.0, "a rate")


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        ("", {}),
        ("x y z", {"word": "x", "rest": ("y", "z")}),
        ("--top_k=3 --top-k none", None),
        ("--top-k=none", {"top_k": None}),
        ("--many 1 2 -3 --rate 1e-3", {"many": (1, 2, -3), "rate": 1e-3}),
        ("--no-browser --causal", {"browser": False, "causal": True}),
        ("--no-causal --way b x", {"causal": False, "way": "b", "word": "x"}),
    ],
)
def test_options_of_every_kind(argv, expected):
    table = Table(Every)
    if expected is None:
        with pytest.raises(UserError, match="given twice"):
            parse(argv.split(), table)
    else:
        assert read_options(table, parse(argv.split(), table), "regard every") == Every(**expected)


def test_help_lists_every_option_with_its_default():
    shown = help_text(Table(Every), "regard every", "About it.")
    for words in ("[WORD] [REST ...]", "--top-k INT", "--many INT ...", "--no-browser ", "a|b", "(default: 0.0)"):
        assert words in shown


@pytest.mark.parametrize("name", COMMANDS)
def test_the_help_of_a_negative_flag_describes_the_negative(name):
    for path, (field, _) in options_of_table(options_of(name)).items():
        if field.default is True:
            assert field.metadata["help"].startswith(("only ", "do not ")), f"{name} --no-{path}"


def test_the_config_of_a_run_is_an_experiment(tmp_path):
    experiment = get("shakespeare-small")
    run = Run.create(tmp_path, "one", to_toml(experiment), environment())
    assert read_experiment(str(run.file("config.toml")), ["--model.layers=1"]) == override(
        experiment, ["--model.layers=1"]
    )
