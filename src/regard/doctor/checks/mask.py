"""Outputs that depend on later tokens or on padding, and the first module that does."""

from collections.abc import Iterable, Iterator
from itertools import compress, islice

import torch
from torch import Tensor, nn

from regard.attention import Mechanism, ModuleProperties, Padded
from regard.data import ArrayBatch, LabeledBatch, PairBatch
from regard.doctor import Check, Findings, ModelPass, SidePass
from regard.doctor.side_pass import MOVED
from regard.models.base import Encoder
from regard.prove.batches import Batch
from regard.prove.comparison import Outputs, first_difference, relative_difference


class MaskFault(Check):
    kind, description = "mask_fault", "a mask is missing or wrong"
    follows = ("wrong_formula",)

    def inputs(self, side_pass: SidePass) -> Iterable[Tensor]:
        return map(side_pass.other_token, side_pass.positions)

    def on_pass(self, model_pass: ModelPass) -> Findings:
        if model_pass.deep and not model_pass.model.carries_state:
            yield from self._content_of_padding(model_pass)

    def _content_of_padding(self, model_pass: ModelPass) -> Findings:
        """A loss that depends on what is in the padding of the inputs."""
        batch = model_pass.few
        real = real_places(batch)
        if real is None or bool(real.all()):
            return
        x = batch.inputs
        other = x + x.std() if x.is_floating_point() else (x + 1) % self.run.vocabulary
        other = torch.where(real.view(*real.shape, *[1] * (x.ndim - 2)), x, other)
        plain, changed = (float(model_pass.total(one)) for one in (batch, batch._replace(inputs=other)))
        if abs(plain - changed) > model_pass.rounding * max(abs(plain), 1e-6):
            evidence = f"with other numbers in the padding the loss of {len(x)} rows is {changed:.5g}, not {plain:.5g}"
            cause = "padding is attended to, or counts in a mean over the row: the lengths do not reach that layer"
            change = "pass the lengths to attention, convolutions and pooling; `regard prove` shows the layer"
            yield self.finding("the padding of the inputs", evidence, cause, change)

    def on_model(self, side_pass: SidePass) -> Findings:
        if not isinstance(side_pass.model, Encoder):
            yield from self._future(side_pass)
        if side_pass.source_pair is not None:
            yield from self._padding(side_pass, side_pass.source_pair)

    def _future(self, side_pass: SidePass) -> Findings:
        """The first module whose output for earlier tokens depends on a later one, if the last module's does too."""
        few, shape = side_pass.few, side_pass.tokens.shape
        for position, training in self._passes(side_pass):
            other, mode = side_pass.other_token(position), " in training mode" if training else ""
            if not training and not self._moves(side_pass.plain, side_pass.with_inputs(other), position):
                continue
            # Passes of one shape, in which nothing but the token differs; in training mode with equal random numbers.
            batches = (few, few._replace(inputs=other))
            plain, changed = (side_pass.outputs(batch, shape, training=training) for batch in batches)
            if not self._moves(plain, changed, position):
                continue
            difference = first_difference(plain, changed, lambda x, end=position: x[:, :end], MOVED)
            if difference is not None:
                name, size = difference
                evidence = (
                    f"another token at {position} moves its output for earlier ones{mode}, by {size:.2g} of its size"
                )
                yield self.finding(name, evidence, *self._cause(side_pass.model.get_submodule(name), mode))
                return

    def _cause(self, module: nn.Module, mode: str) -> tuple[str, str]:
        """Why a module lets later tokens through."""
        if isinstance(module, Mechanism) and not module.recurrent:
            change = "pass the plan of a Causal() mask to it; `regard prove` shows every position"
            return f"its mask is missing, ignored or off by one{mode}", change
        if isinstance(module, Mechanism):
            cause = "its scan or convolution reads later tokens: circular without padding, reversed, or off by one"
            return f"{cause}{mode}", "pad a Fourier transform to twice the length, and shift outputs back by none"
        cause = "what it computes or reads is mixed over tokens: a mask, a norm or mean over time, or axes merged"
        return (
            f"{cause} without exchanging them{mode}",
            "exchange heads and tokens before merging; reduce over channels",
        )

    def _moves(self, plain: Outputs, changed: Outputs, position: int) -> bool:
        """Whether the last module's output before ``position`` differs."""
        ends = (outputs[-1][1][:, :position] for outputs in (plain, changed) if outputs)
        return bool(plain) and relative_difference(*ends) > 0

    def _passes(self, side_pass: SidePass) -> Iterator[tuple[int, bool]]:
        """The positions of changed tokens, and whether in training mode.

        There is no pass in training mode for a model that carries its state or whose tokens compete by design.
        """
        yield from ((position, False) for position in side_pass.positions)
        modules = side_pass.model.modules()
        compete = any(isinstance(m, ModuleProperties) and not m.batch_invariant for m in modules)
        if side_pass.deep and not side_pass.model.carries_state and not compete:
            yield from ((position, True) for position in islice(side_pass.positions, 1))

    def _padding(self, side_pass: SidePass, batch: PairBatch) -> Findings:
        """The first module whose output for real tokens depends on the tokens in the source's padding."""
        size, vocabulary = batch.source.shape[1], side_pass.run.vocabulary
        source = batch.source[:, : size - (size == batch.inputs.shape[1])]  # of another length than the targets
        lengths = batch.source_lengths.clamp(max=source.shape[1] - 2)  # so that every row has padding
        real = torch.arange(source.shape[1], device=source.device) < lengths[:, None]
        padded = batch._replace(source=source, source_lengths=lengths)
        other_padding = padded._replace(source=torch.where(real, source, (source + 1) % vocabulary))
        other_targets = padded._replace(inputs=(batch.inputs + 1) % vocabulary)
        for tokens, counted in ((source, real), (batch.inputs, torch.ones_like(batch.inputs).bool())):
            plain, changed = (side_pass.outputs(one, tokens.shape) for one in (padded, other_padding))
            if tokens is not source:  # modules that do not read the targets hold source positions, padding included
                targets = side_pass.outputs(other_targets, tokens.shape)
                reads = [not one.equal(other) for (_, one), (_, other) in zip(plain, targets, strict=False)]
                plain, changed = list(compress(plain, reads)), list(compress(changed, reads))
            difference = first_difference(plain, changed, lambda x, mask=counted: x[mask], MOVED)
            if difference is not None:
                evidence = f"other tokens in the padding move its output for the sentence, by {difference[1]:.2g}"
                cause = "it does not get the lengths of the sentences, and attends to padding"
                change = "pass Padded(lengths, size) to it as its keys; `regard prove` shows every position"
                yield self.finding(difference[0], evidence, cause, change)
                return


def real_places(batch: Batch) -> Tensor | None:
    """Which places of the rows are no padding [B, N]; None for batches without padding."""
    lengths = batch.lengths if isinstance(batch, ArrayBatch) else None
    if isinstance(batch, LabeledBatch) and isinstance(batch.slots, Padded):
        lengths = batch.slots.lengths
    if lengths is None:
        return None
    return torch.arange(batch.inputs.shape[1], device=lengths.device) < lengths[:, None]
