"""Outputs that depend on later tokens or on padding, and the first module that does."""

from itertools import compress

import torch

from regard.data import PairBatch
from regard.doctor import Check, Findings, SidePass
from regard.doctor.side_pass import MOVED
from regard.models.base import Encoder
from regard.prove.comparison import first_difference, relative_difference


class MaskFault(Check):
    kind, description = "mask_fault", "a mask is missing or wrong"

    def on_model(self, side_pass: SidePass) -> Findings:
        if not isinstance(side_pass.model, Encoder):
            yield from self._future(side_pass)
        if side_pass.source_pair is not None:
            yield from self._padding(side_pass, side_pass.source_pair)

    def _future(self, side_pass: SidePass) -> Findings:
        """The first module whose output for earlier tokens depends on a later one, if the last module's does too."""
        for position in side_pass.positions:
            plain, changed = side_pass.plain, side_pass.with_token_changed(position)
            if not plain or relative_difference(plain[-1][1][:, :position], changed[-1][1][:, :position]) == 0:
                continue
            difference = first_difference(plain, changed, lambda x, end=position: x[:, :end], MOVED)
            if difference is not None:
                name, size = difference
                evidence = f"another token at {position} moves its output for earlier ones, by {size:.2g} of its size"
                cause = "its mask is missing, ignored or off by one"
                change = "pass the plan of a Causal() mask to it; `regard prove` shows every position"
                yield self.finding(name, evidence, cause, change)
                return

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
