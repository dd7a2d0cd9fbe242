"""The run folder: the only code that reads or writes one.

    runs/<name>/
      config.toml  tokenizer.json  MANIFEST.json  environment.json  metrics.jsonl  samples.jsonl
      checkpoints/step-000500/ model.safetensors optimizer.safetensors state.json MANIFEST.json

A run folder is data, never code: TOML, JSON, JSON Lines and safetensors, strictly parsed; no pickle. It may come from
somebody else, so its files are opened by `untrusted.open_plain` only. torch is imported only to save or load tensors.
"""

from regard.runs.checkpoint import Checkpoint
from regard.runs.environment import environment
from regard.runs.folder import Run
