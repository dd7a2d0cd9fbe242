"""A model as an ONNX graph, with a batch and lengths of any size, for onnxruntime and other programs."""

from __future__ import annotations

import logging
import shutil
import warnings
from pathlib import Path
from typing import Generic, NamedTuple, TypeVar

import torch
from torch import Tensor, nn

from regard.attention import Padded
from regard.errors import UserError
from regard.models.base import Encoder, LanguageModel, Model, Seq2SeqModel

M = TypeVar("M", bound=Model)
NEEDED = "an ONNX file is written by the packages onnx and onnxscript; install them with: pip install 'regard[onnx]'"
EXAMPLE = (2, 6)  # rows and length of the inputs that the graph is traced with
OTHERS = ((1, 1), (1, 5), (3, 17), (2, 64), (1, 250))  # rows and lengths that are compared


class OnnxExport(NamedTuple):
    """What was written."""

    inputs: tuple[str, ...]
    output: str
    difference: float | None  # to onnxruntime at several lengths; None if that is not installed


class ExportedGraph(nn.Module, Generic[M]):
    """A model with the inputs ``names`` that its ONNX graph has."""

    names: tuple[str, ...]

    def __init__(self, model: M):
        super().__init__()
        self.model = model

    def example(self, rows: int, length: int) -> tuple[Tensor, ...]:
        """Random inputs; the first row has padding, if rows may have any."""
        raise NotImplementedError


class LanguageModelGraph(ExportedGraph[LanguageModel]):
    """Tokens [B, N] to logits [B, N, V]."""

    names = ("input_ids",)

    def forward(self, input_ids: Tensor) -> Tensor:
        return self.model(input_ids)

    def example(self, rows: int, length: int) -> tuple[Tensor, ...]:
        return (torch.randint(self.model.config.vocabulary, (rows, length)),)


class EncoderGraph(ExportedGraph[Encoder]):
    """Tokens [B, N] and a mask [B, N] that is 0 at padding, which comes last, to what the encoder's head gives."""

    names = ("input_ids", "attention_mask")

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        return self.model(input_ids, Padded(attention_mask.sum(1), input_ids.shape[1]))

    def example(self, rows: int, length: int) -> tuple[Tensor, ...]:
        mask = torch.ones(rows, length, dtype=torch.long)
        mask[0, 1 + length // 2 :] = 0
        return torch.randint(self.model.config.vocabulary, (rows, length)), mask


class Seq2SeqGraph(ExportedGraph[Seq2SeqModel]):
    """Target inputs [B, T], sources [B, S] and a mask [B, S] to logits [B, T, V]."""

    names = ("decoder_input_ids", "input_ids", "attention_mask")

    def forward(self, decoder_input_ids: Tensor, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        return self.model(decoder_input_ids, input_ids, attention_mask.sum(1))

    def example(self, rows: int, length: int) -> tuple[Tensor, ...]:
        sources, targets = self.model.source_vocabulary, self.model.config.vocabulary
        mask = torch.ones(rows, length + 1, dtype=torch.long)
        mask[0, 1 + length // 2 :] = 0
        return torch.randint(targets, (rows, length)), torch.randint(sources, (rows, length + 1)), mask


def graph_of(model: Model) -> ExportedGraph:
    """The model with the inputs that its ONNX graph has."""
    match model:
        case LanguageModel():
            return LanguageModelGraph(model)
        case Encoder():
            return EncoderGraph(model)
        case Seq2SeqModel() if model.source_vocabulary:
            return Seq2SeqGraph(model)
    raise UserError(f"a {type(model).__name__} that reads no tokens cannot be written as ONNX; export a folder instead")


def write_onnx(path: Path, model: Model) -> OnnxExport:
    """Write a model in float32 to a file that does not exist; weights above 2 GB go to a second file beside it."""
    graph = graph_of(model.float().eval()).eval()
    output = "last_hidden_state" if isinstance(model.unembed, nn.Identity) else "logits"
    program = _traced(graph, output)
    temporary = path.with_name(f".{path.name}.unfinished")
    temporary.mkdir(parents=True)
    try:
        program.save(str(temporary / path.name))
        difference = compare(temporary / path.name, graph)
        # The graph last, so that it is there only if it is whole.
        for file in sorted(temporary.iterdir(), reverse=True):
            file.rename(path.with_name(file.name))
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return OnnxExport(graph.names, output, difference)


def _traced(graph: ExportedGraph, output: str) -> torch.onnx.ONNXProgram:
    try:
        import onnxscript
    except ImportError:
        raise UserError(NEEDED) from None
    del onnxscript
    for name in ("torch.onnx", "torch.export", "onnxscript", "onnx_ir"):
        logging.getLogger(name).setLevel(logging.ERROR)
    limit = graph.model.limit or 1 << 20
    if limit <= EXAMPLE[1]:
        raise UserError(f"a model with a context of {limit} is too short to be written as ONNX with any length")
    axes = ("batch", "length"), ("batch", "source_length"), ("batch", "source_length")
    axes = axes if isinstance(graph, Seq2SeqGraph) else axes[:1] * len(graph.names)
    sizes = {"batch": torch.export.Dim("batch")}
    sizes |= {name: torch.export.Dim(name, max=limit) for name in ("length", "source_length")}
    shapes = {name: dict(enumerate(sizes[axis] for axis in each)) for name, each in zip(graph.names, axes, strict=True)}
    try:
        with warnings.catch_warnings(), torch.no_grad():
            warnings.simplefilter("ignore")
            program = torch.onnx.export(
                graph,
                graph.example(*EXAMPLE),
                dynamo=True,
                dynamic_shapes=shapes,
                input_names=list(graph.names),
                output_names=[output],
                verbose=False,
            )
    except (torch.onnx.OnnxExporterError, RuntimeError) as error:
        reason = str(error.__cause__ or error).strip().splitlines()[0][:200]
        raise UserError(f"this {type(graph.model).__name__} cannot be written as ONNX ({reason})") from error
    assert program is not None
    return program


@torch.no_grad()
def compare(path: Path, graph: ExportedGraph) -> float | None:
    """The largest difference between a written graph in onnxruntime and the model; None without onnxruntime."""
    try:
        import onnxruntime
    except ImportError:
        return None
    session, limit = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"]), graph.model.limit
    largest = 0.0
    for rows, length in OTHERS:
        if limit is not None and length + isinstance(graph, Seq2SeqGraph) > limit:
            continue
        given = graph.example(rows, length)
        (found,) = session.run(None, {name: one.numpy() for name, one in zip(graph.names, given, strict=True)})
        largest = max(largest, float((torch.from_numpy(found) - graph(*given)).abs().max()))
    return largest
