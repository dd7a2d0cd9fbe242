"""A checkpoint holds all of the model: made anew from its config, with the saved weights, it answers the same."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from regard.prove.differ import Worst
from regard.prove.subject import Subject
from regard.prove.verdict import Verdict, fails, holds, unasked
from regard.runs.tensors import read_tensors, write_tensors

SAYS = "a model made anew from its config, with the saved weights, gives the same logits"


@torch.no_grad()
def judge(subject: Subject) -> Verdict:
    model = subject.model
    if model is None or not hasattr(getattr(model, "config", None), "build"):
        return unasked("it has no config to be made anew from")
    with TemporaryDirectory() as folder:
        path = Path(folder) / "model.safetensors"
        write_tensors(path, model.state_dict())
        saved = read_tensors(path)
    again, worst = model.config.build(), Worst()
    missing, unexpected = again.load_state_dict(saved, strict=False)
    if missing or unexpected:
        names = ", ".join([*missing, *unexpected][:3])
        return fails(f"the saved tensors are not those of a new model: {names}")
    again = again.to(subject.device).eval()
    lengths = sorted({subject.length, subject.long})
    for length in lengths:
        tokens = subject.tokens(2, length)
        if subject.takes_source:
            after = again(tokens, *subject.sources.pick(torch.arange(2, device=tokens.device)))
        else:
            after = again(tokens)
        worst.add(after, subject(tokens), f"{length} tokens")
    if worst.found:
        unsaved = sorted({name for name, _ in model.named_buffers()} - set(saved))
        return fails(worst.found + (f"; not in the checkpoint: {', '.join(unsaved[:4])}" if unsaved else ""))
    return holds(f"saved, read and made anew: {worst.size:.1g} apart on {' and '.join(map(str, lengths))} tokens")
