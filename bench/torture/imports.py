"""Mutated published models: config, tokenizer, chat template, safetensors, GGUF and ONNX files, and files with code.

An import says in a sentence what is wrong, or it works and the model answers. Nothing of a file is run, no run is left
half-written, and no file makes the process allocate more than its size explains.
"""

from __future__ import annotations

import json
import random
import resource
import shutil
import struct
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import torch

from bench.torture.mutations import mutated
from bench.torture.payloads import pickled
from bench.torture.room import Room, Tally
from regard.convert.hub import write_hub
from regard.data import BytesConfig
from regard.models import GPTConfig
from regard.nn.feedforward import SwiGLUConfig

MEMORY = 2**30  # bytes that an import of a file of some kilobytes may allocate
TEMPLATE = "{% for m in messages %}<|{{ m['role'] }}|>{{ m['content'] }}{% endfor %}<|assistant|>"
AWKWARD = (
    None,
    True,
    -1,
    0,
    1,
    1.5,
    2**31,
    2**63,
    1e308,
    "",
    "none",
    "\x00",
    "../..",
    [],
    {},
    [[]],
    [None] * 9,
    "x" * 9999,
)
ESCAPES = (
    "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "{{ cycler.__init__.__globals__.os.system('touch CANARY') }}",
    "{{ messages.__class__.__base__.__subclasses__()[0] }}",
    "{% for i in range(10**12) %}x{% endfor %}",
    "{{ 'x' * 10**10 }}",
    "{% import 'os' as os %}{{ os.system('touch CANARY') }}",
)


def attack(folder: Path, count: int, seed: int) -> Tally:
    """``count`` mutations and payloads."""
    chance, tally = random.Random(seed), Tally("imports", "mutated published files")
    room = Room(folder)
    publish(room)
    canary, counts = room.path / "CANARY", dict.fromkeys(KINDS, 0)
    for number in range(count):
        kind = chance.choice([name for name in KINDS if name != "onnx" or (room.path / "tiny.onnx").exists()])
        shutil.rmtree(room.path / "hub", ignore_errors=True)
        shutil.rmtree(room.path / "runs", ignore_errors=True)
        shutil.copytree(room.path / "published", room.path / "hub")
        source = KINDS[kind](room, chance)
        what = f"{kind} {number} of seed {seed}"
        outcome = room.regard("import", source, "mine", before=_limit_memory)
        clean = tally.judge(what, outcome)
        tally.tried += 1
        counts[kind] += 1
        if clean and outcome.code == 0:
            for command in (("generate", "mine", "--prompt", "ab", "--tokens", "4"), ("info", "mine")):
                tally.judge(f"{what}, {command[0]}", room.regard(*command, before=_limit_memory))
            if (room.path / "runs" / "mine" / "chat.json").exists():
                words = ("chat", "mine", "--message", "hello", "--tokens", "4")
                tally.judge(f"{what}, chat", room.regard(*words, before=_limit_memory))
        elif (room.path / "runs" / "mine").exists():
            tally.add("lost", f"{what}: a run was left half-written")
        if canary.exists():
            tally.add("executed", what)
            canary.unlink()
    tally.notes |= {name: tried for name, tried in counts.items() if tried}
    return tally


def publish(room: Room) -> None:
    """A small Llama in the hub's layout, as GGUF, and as ONNX where the exporter is installed."""
    config = GPTConfig(
        vocabulary=256, context=32, layers=2, heads=2, width=32, qk_norm=False, feedforward=SwiGLUConfig()
    )
    torch.manual_seed(1)
    BytesConfig().build([]).save(room.path / "tokenizer.json")
    hub = room.path / "published"
    write_hub(hub, config, config.build(), room.path / "tokenizer.json")
    (hub / "tokenizer_config.json").write_text(json.dumps({"chat_template": TEMPLATE, "eos_token": "."}))
    shutil.copytree(hub, room.path / "hub")
    files = ["tiny.gguf", *(["tiny.onnx"] if find_spec("onnxscript") else [])]
    for words in (("import", "hub", "mine"), *(("export", "mine", file) for file in files)):
        outcome = room.regard(*words)
        assert outcome.code == 0, outcome.err


def _limit_memory() -> None:
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    most = int(status["VmData"].split()[0]) * 1024 + MEMORY
    resource.setrlimit(resource.RLIMIT_DATA, (most, most))


def config(room: Room, chance: random.Random) -> str:
    return _json(room, "config.json", chance)


def tokenizer(room: Room, chance: random.Random) -> str:
    return _json(room, "tokenizer.json", chance)


def tokenizer_config(room: Room, chance: random.Random) -> str:
    return _json(room, "tokenizer_config.json", chance)


def weights(room: Room, chance: random.Random) -> str:
    """The safetensors file: its header as JSON, its lengths, its bytes."""
    path = room.path / "hub" / "model.safetensors"
    data = path.read_bytes()
    (size,) = struct.unpack("<Q", data[:8])
    header, rest = data[8 : 8 + size], data[8 + size :]
    if chance.random() < 0.5:
        header = json.dumps(_changed(json.loads(header), chance)).encode()
    elif chance.random() < 0.5:
        size = chance.choice((0, 1, size - 1, size + 1, 2**31, 2**63, 2**64 - 1))
        path.write_bytes(struct.pack("<Q", size) + header + rest)
        return "hub"
    else:
        header = mutated(header, chance)
    path.write_bytes(struct.pack("<Q", len(header)) + header + rest[: len(rest) - chance.choice((0, 0, 1, 100))])
    return "hub"


def shards(room: Room, chance: random.Random) -> str:
    """An index of shards that does not say the truth."""
    names = chance.choice(("model.safetensors", "../secret.safetensors", "/etc/passwd", "missing.safetensors", "", 7))
    index = {"metadata": {}, "weight_map": {"model.embed_tokens.weight": names, "b": "model.safetensors"}}
    text = json.dumps(_changed(index, chance) if chance.random() < 0.7 else index)
    (room.path / "hub" / "model.safetensors.index.json").write_text(text)
    if chance.random() < 0.5:
        (room.path / "hub" / "model.safetensors").rename(room.path / "hub" / "other.safetensors")
    return "hub"


def gguf(room: Room, chance: random.Random) -> str:
    return _bytes(room, "tiny.gguf", chance, 3000)


def onnx(room: Room, chance: random.Random) -> str:
    return _bytes(room, "tiny.onnx", chance, 10**9)


def code(room: Room, chance: random.Random) -> str:
    """A file that runs code when it is unpickled, imported or rendered."""
    hub = room.path / "hub"
    if chance.random() < 0.5:
        fields = {"chat_template": chance.choice(ESCAPES).replace("CANARY", str(room.path / "CANARY"))}
        (hub / "tokenizer_config.json").write_text(json.dumps(fields))
        return "hub"
    _, data = chance.choice(list(pickled(room.path / "CANARY")))
    name = chance.choice(("model.safetensors", "pytorch_model.bin", "model.pt", "tokenizer.json", "config.json"))
    if name.startswith(("pytorch", "model.pt")):
        (hub / "model.safetensors").unlink()
    (hub / name).write_bytes(data)
    (hub / "modeling_tiny.py").write_text(f"open({str(room.path / 'CANARY')!r}, 'w').close()\n")
    if name != "config.json":
        remote = {"auto_map": {"AutoModelForCausalLM": "modeling_tiny.Tiny"}, "trust_remote_code": True}
        (hub / "config.json").write_text(json.dumps(json.loads((hub / "config.json").read_text()) | remote))
    return "hub"


KINDS: dict[str, Callable[[Room, random.Random], str]] = {
    one.__name__: one for one in (config, tokenizer, tokenizer_config, weights, shards, gguf, onnx, code)
}


def _json(room: Room, name: str, chance: random.Random) -> str:
    """A file of JSON: values replaced, or bytes mutated."""
    path = room.path / "hub" / name
    whole = path.read_bytes()
    path.write_bytes(mutated(whole, chance) if chance.random() < 0.3 else _dumped(json.loads(whole), chance))
    return "hub"


def _dumped(value: object, chance: random.Random) -> bytes:
    for _ in range(chance.randrange(1, 4)):
        value = _changed(value, chance)
    return json.dumps(value).encode()


def _changed(value: object, chance: random.Random) -> object:
    """A JSON value with one leaf or branch replaced, removed or renamed."""
    if isinstance(value, dict) and value and chance.random() < 0.9:
        key = chance.choice(list(value))
        match chance.randrange(8):
            case 0:
                return {name: item for name, item in value.items() if name != key}
            case 1:
                return {name if name != key else f"{name}x": item for name, item in value.items()}
            case _:
                return value | {key: _changed(value[key], chance)}
    if isinstance(value, list) and value and chance.random() < 0.8:
        place = chance.randrange(len(value))
        return [*value[:place], _changed(value[place], chance), *value[place + 1 :]]
    if isinstance(value, int) and not isinstance(value, bool) and chance.random() < 0.5:
        return chance.choice((value + 1, value - 1, -value, value * 2, value * 10**6, float(value)))
    return chance.choice(AWKWARD)


def _bytes(room: Room, name: str, chance: random.Random, head: int) -> str:
    """A binary file, with changes in its first ``head`` bytes, where its structure is."""
    whole = (room.path / name).read_bytes()
    head = min(head, len(whole))
    data = mutated(whole[:head], chance) + whole[head:]
    if chance.random() < 0.2:
        data = data[: chance.randrange(len(data))]
    target = f"changed{Path(name).suffix}"
    (room.path / target).write_bytes(data)
    return target
