"""`regard export`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from regard.commands.common import CheckpointOptions
from regard.config import argument, option
from regard.errors import UserError
from regard.runs.folder import TOKENIZER
from regard.runs.waiting import waiting


@dataclass(frozen=True)
class ExportOptions(CheckpointOptions):
    """Options of `regard export`."""

    out: Path = argument(Path("exported"), "the folder to write, or a file that ends in .gguf or .onnx")
    q8: bool = option(False, "for a GGUF file: matrices in 8 bits (Q8_0) instead of F16")


def export(options: ExportOptions) -> int:
    """Write a run's model in the hub's layout, for `AutoModel.from_pretrained`, or as a GGUF or ONNX file.

    An ONNX graph takes batches and lengths of any size; if onnxruntime is installed, its output is compared with ours.
    """
    run = options.open()
    if options.out.exists():
        raise UserError(f"{options.out} exists already; choose another name")
    from regard.convert.gguf_models import write_gguf_model
    from regard.convert.hub import write_hub
    from regard.data import DataConfig, ImportedConfig
    from regard.generate.load import load_weights
    from regard.nn.quantized import dequantize

    model, checkpoint = load_weights(run, options.step)
    dequantize(model)  # both formats store their own numbers
    config, origin = model.config, run.load(DataConfig, "data")
    if options.out.suffix == ".onnx":
        from regard.convert.onnx_export import write_onnx

        with waiting(f"writing {options.out}"):
            made = write_onnx(options.out, model)
        gap = "" if made.difference is None else f"; onnxruntime differs by at most {made.difference:.1g}"
        text = f"{options.out}: {', '.join(made.inputs)} to {made.output}, of step {checkpoint.step:,}{gap}"
        options.show({"out": str(options.out), "step": checkpoint.step, **made._asdict()}, text)
        return 0
    if options.out.suffix == ".gguf":
        if not run.file(TOKENIZER).exists():
            raise UserError(f"{run.path} has no {TOKENIZER}, which a GGUF file must hold; export a folder instead")
        tokens = run.read(TOKENIZER).decode()
        fields = write_gguf_model(options.out, config, model, tokens, quantize=options.q8)
    else:
        tokenizer = run.file(TOKENIZER) if run.file(TOKENIZER).exists() else None
        specials = origin.specials if isinstance(origin, ImportedConfig) else None
        fields = write_hub(options.out, config, model, tokenizer, specials)
    text = f"{options.out}: a {fields['model_type']} of step {checkpoint.step:,}"
    options.show({"out": str(options.out), "step": checkpoint.step, "config": fields}, text)
    return 0
