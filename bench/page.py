"""How soon the page shows a large model's attention, and what that costs: `python -m bench.page`.

A run of 12 layers x 12 heads (width 768) with random weights is made, a real `regard serve` started on it, and asked
for what a browser asks for when somebody reads 4,096 tokens. Counted from the moment at which the server has the trace:
when the first picture is there and how many bytes it has, when all layers are in it, and how long a hover over a row
and a click on a cell take. Then `regard look` writes the page of 8,192 tokens, and the peak of its memory is told.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch

from regard.config import to_toml
from regard.data import BytesConfig, TextConfig
from regard.models import GPTConfig
from regard.runs import Run, environment
from regard.train import Experiment, TrainConfig, train

sys.path.append(str(Path(__file__).parents[1] / "tests" / "serve"))
from serve_kit import run_server  # type: ignore[import-not-found] (of the tests)

LAYERS, HEADS, WIDTH = 12, 12, 768
SHORT, LONG, HOVERS = 4096, 8192, 60


def written(length: int) -> str:
    """So many characters of one byte each."""
    words = ("to", "be", "or", "not", "that", "is", "the", "question", "whether", "nobler")
    text = " ".join(words[i * i % 10] + words[i % 7] for i in range(length // 4))
    return text[:length]


def large(folder: Path) -> Run:
    """A run of one update; rotary positions go beyond the context."""
    (folder / "text.txt").write_text(written(4 * LONG))
    model = GPTConfig(context=256, layers=LAYERS, heads=HEADS, width=WIDTH, zero_init=False)
    data = TextConfig(path=str(folder / "text.txt"), tokenizer=BytesConfig(), batch=1, validation=0.3)
    wanted = Experiment(model, data, train=TrainConfig(steps=1, evaluate_every=None, device="cpu"))
    run = Run.create(folder / "runs", "large", to_toml(wanted.checked()), environment())
    train(wanted, run, [])
    return run


def page(folder: Path) -> None:
    """What a browser asks for, in its order."""
    with run_server(folder / "runs") as server:
        began = time.perf_counter()
        told = server.post("/api/traces", {"run": server.identify("large"), "text": written(SHORT)})
        assert told.status == 200, told.body
        base = f"/api/traces/{told.json['id']}"
        there = time.perf_counter()
        print(f"{LAYERS} x {HEADS} x {SHORT:,} tokens: the trace takes {there - began:.1f} s")
        sent, ready, asked = 0, 0, 0
        while ready < LAYERS:
            answer = server.get(f"{base}/overview?size=64&wait=1")
            sent, ready, asked = sent + len(answer.body), int(answer.headers["x-ready"]), asked + 1
            taken = time.perf_counter() - there
            if asked == 1 or ready == LAYERS:
                print(f"  {ready} of {LAYERS} layers after {taken:.2f} s, {sent / 1e6:.2f} MB sent so far")
        for name, more in (("row", ""), ("cell", "&key=17")):
            times = []
            for i in range(HOVERS):
                began = time.perf_counter()
                place = f"attention={i % LAYERS}&head={i * 5 % HEADS}&query={(i * 977 + 40) % SHORT}{more}"
                assert server.get(f"{base}/{name}?{place}").status == 200
                times.append(1e3 * (time.perf_counter() - began))
            print(f"  a {name}: {statistics.median(times):.1f} ms, at most {max(times):.1f} ms of {HOVERS}")


def file(folder: Path) -> None:
    """`regard look` as a process of its own."""
    (folder / "long.txt").write_text(written(LONG))
    words = ["look", "large", "--runs", str(folder / "runs"), "--file", str(folder / "long.txt"), "--device", "cpu"]
    began = time.perf_counter()
    process = subprocess.Popen([sys.executable, "-m", "regard", *words], env={**os.environ, "OMP_NUM_THREADS": "2"})
    _, code, used = os.wait4(process.pid, 0)
    assert code == 0
    peak = used.ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    size = (folder / "runs" / "large" / "look.html").stat().st_size
    seconds = time.perf_counter() - began
    print(f"regard look, {LONG:,} tokens: {seconds:.0f} s, {peak / 1e9:.2f} GB at most, a file of {size / 1e6:.1f} MB")


if __name__ == "__main__":
    torch.set_num_threads(2)
    if sys.argv[1:2] == ["make"]:
        large(Path(sys.argv[2]))
        raise SystemExit
    with tempfile.TemporaryDirectory() as scratch:
        # Elsewhere: a process is charged with the memory of the one that started it.
        subprocess.run([sys.executable, "-m", "bench.page", "make", scratch], check=True)
        for part in sys.argv[1:] or ("file", "page"):
            {"page": page, "file": file}[part](Path(scratch))
