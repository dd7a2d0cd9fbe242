"""A checkpoint holds the whole model: rebuilt from its config with the saved weights, it gives the same logits."""

from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from regard.prove import ClaimResult, ModelUnderTest, claim, fails, not_applicable
from regard.prove.comparison import LargestGap
from regard.runs.tensors import read_tensors, write_tensors


@claim("checkpoint", "a model rebuilt from its config, with the saved weights, gives the same logits", order=130)
@torch.no_grad()
def checkpoint(subject: ModelUnderTest) -> ClaimResult:
    model = subject.model
    if model is None:
        return not_applicable("it has no config to be rebuilt from")
    with TemporaryDirectory() as folder:
        path = Path(folder) / "model.safetensors"
        write_tensors(path, model.state_dict())
        saved = read_tensors(path)
    rebuilt, largest = model.config.build(), LargestGap()
    missing, unexpected = rebuilt.load_state_dict(saved, strict=False)
    if missing or unexpected:
        return fails(f"the saved tensors are not those of a new model: {', '.join([*missing, *unexpected][:3])}")
    rebuilt = rebuilt.to(subject.device).eval()
    unsaved = sorted({name for name, _ in model.named_buffers()} - set(saved))
    note = f" (not in the checkpoint: {', '.join(unsaved[:4])})" if unsaved else ""
    lengths = sorted({subject.length, subject.long})
    for length in lengths:
        tokens = subject.tokens(2, length)
        again = replace(subject, forward=rebuilt)
        largest.add(again(tokens), subject(tokens), f"{length} tokens{note}")
    return largest.result(f"saved, loaded and rebuilt, on {' and '.join(map(str, lengths))} tokens")
