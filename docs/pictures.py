"""Draw the pictures of the README: masks, the losses of a run, and screenshots of its report.

python docs/pictures.py [RUN]

The screenshots need Chromium.
"""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import torch

from regard.attention import Causal, Dilated, Full, Global, Packed, Padded, Prefix, Range, Strided, Window
from regard.attention.call import allowed
from regard.attention.slots import make_pairs

HERE = Path(__file__).parent / "pictures"
N = 24
CAUSAL = Causal()
GALLERY = [
    ("Causal()", CAUSAL, Range(N)),
    ("Causal() & Window(6)", CAUSAL & Window(6), Range(N)),
    ("Causal() | Prefix(8)", CAUSAL | Prefix(8), Range(N)),
    ("Causal() & (Window(4) | Strided(5))", CAUSAL & (Window(4) | Strided(5)), Range(N)),
    ("Global((0, 12)) | Window(3, 2)", Global((0, 12)) | Window(3, 2), Range(N)),
    ("Causal() & Dilated(5, 3)", CAUSAL & Dilated(5, 3), Range(N)),
    ("Causal(), packed documents", CAUSAL, Packed.of([[7, 12, 5]])),
    ("Full(), 16 tokens and padding", Full(), Padded(torch.tensor([16]), N)),
]


def masks() -> None:
    """Eight masks; dark cells are allowed pairs."""
    figure, axes = plt.subplots(2, 4, figsize=(12, 6.4), layout="constrained")
    for axis, (title, mask, slots) in zip(axes.flat, GALLERY, strict=True):
        seen = allowed(mask, make_pairs(slots, slots, heads=1, device=torch.device("cpu"), batch=1))[0, 0]
        axis.imshow(seen, cmap="Blues", vmin=0, vmax=1.25, interpolation="nearest")
        axis.set_title(title, fontsize=9, family="monospace")
        axis.set_xticks([0, N - 1])
        axis.set_yticks([0, N - 1])
    axes[0, 0].set_ylabel("query")
    axes[1, 0].set_ylabel("query")
    for axis in axes[1]:
        axis.set_xlabel("key")
    figure.savefig(HERE / "masks.png", dpi=110)


def losses(run: Path) -> None:
    """A run's training and validation loss over time."""
    records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    train = [(r["seconds"], r["loss"]) for r in records if "loss" in r]
    when = {r["step"]: r["seconds"] for r in records if "seconds" in r}
    held_out = [(when[r["step"]], r["validation_loss"]) for r in records if "validation_loss" in r]
    figure, axis = plt.subplots(figsize=(7, 3.6), layout="constrained")
    axis.plot(*zip(*train, strict=True), lw=0.8, alpha=0.5, label="training")
    axis.plot(*zip(*held_out, strict=True), "o-", label="validation")
    axis.set(xlabel="seconds on two CPU cores", ylabel="nats per character", ylim=(1.2, 3.2))
    axis.legend(frameon=False)
    axis.spines[["top", "right"]].set_visible(False)
    figure.savefig(HERE / "losses.png", dpi=110)


def report(run: Path) -> None:
    """The upper part of a run's report.html in the light and the dark theme."""
    from PIL import Image

    browser = shutil.which("chromium") or shutil.which("google-chrome")
    if browser is None:
        print("Chromium is not installed; no screenshots of the report")
        return
    page = (run / "report.html").resolve().as_uri()
    for name, scheme in (("light", 1), ("dark", 0)):
        picture = HERE / f"report-{name}.png"
        options = ["--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--window-size=1180,3960"]
        options += [f"--blink-settings=preferredColorScheme={scheme}", f"--screenshot={picture}"]
        subprocess.run([browser, *options, page], check=True, capture_output=True)
        taken = Image.open(picture).convert("RGB")
        smaller = taken.resize((taken.width * 3 // 4, taken.height * 3 // 4), Image.Resampling.LANCZOS)
        smaller.quantize(256, Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE).save(picture, optimize=True)


if __name__ == "__main__":
    HERE.mkdir(exist_ok=True)
    masks()
    for run in sys.argv[1:]:
        losses(Path(run))
        report(Path(run))
