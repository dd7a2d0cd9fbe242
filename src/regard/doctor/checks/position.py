"""The order of earlier tokens does not reach the first attention of a model with positions.

Deeper layers know the order from how many tokens each one sees. All earlier tokens are reversed, and the last of them
is swapped with one further back: positions that repeat, or end too early, show only there.
"""

from collections.abc import Iterable

import torch
from torch import Tensor

from regard.doctor import Check, Findings, SidePass
from regard.doctor.checks.units import SMALL_SCORES
from regard.doctor.side_pass import MOVED, SHORTEST
from regard.prove.batches import Batch
from regard.prove.comparison import relative_difference, reverse_context

DISTANCES = (1, 8, 16)  # between the two tokens that are swapped


class PositionFault(Check):
    kind, description = "position_fault", "positions have no effect"
    follows = ("attention_entropy", "exploding_gradients")
    needs_confirmation = True

    def inputs(self, side_pass: SidePass) -> Iterable[Tensor]:
        return reordered(side_pass.tokens).values() if side_pass.deep and side_pass.model.positional else ()

    def on_model(self, side_pass: SidePass) -> Findings:
        if not side_pass.deep or not side_pass.model.positional:
            return
        changed = (side_pass.with_inputs(side_pass.other_token(position)) for position in side_pass.positions)
        names = (side_pass.first_attention(side_pass.plain, outputs) for outputs in changed)
        name = next(filter(None, names), "")
        if side_pass.score_sizes.get(name, 1.0) < SMALL_SCORES:
            return  # attention that has not begun to weigh keys
        found = list(self._order(side_pass, side_pass.few, "inputs", name))
        yield from found
        pair = side_pass.source_pair
        if pair is not None and not found:
            length = int(pair.source_lengths.min())  # no padding
            pair = pair._replace(source=pair.source[:, :length], source_lengths=pair.source_lengths.clamp(max=length))
            other = pair._replace(source=(pair.source + 1) % self.run.vocabulary)
            name = side_pass.first_attention(*(side_pass.outputs(one, pair.source.shape) for one in (pair, other)))
            yield from self._order(side_pass, pair, "source", name)

    def _order(self, side_pass: SidePass, batch: Batch, side: str, name: str) -> Findings:
        """Whether the output of attention ``name``, if any, for the last token depends on the order of earlier ones."""
        tokens: Tensor = batch._asdict()[side]

        def last_output(tokens: Tensor) -> Tensor | None:
            if side == "inputs":
                outputs = [one for one in side_pass.with_inputs(tokens) if one[0] == name]
            else:
                outputs = side_pass.outputs(batch._replace(**{side: tokens}), tokens.shape, only=name)
            return outputs[0][1][:, -1:] if outputs else None

        plain = last_output(tokens) if name and tokens.shape[1] >= SHORTEST else None
        if plain is None:
            return
        for how, changed in reordered(tokens).items():
            output = None if torch.equal(changed, tokens) else last_output(changed)
            if output is None or (difference := relative_difference(plain, output)) >= MOVED:
                continue
            # An attention that ignores those tokens altogether is another fault.
            other = last_output(torch.where(changed != tokens, (tokens + 1) % self.run.vocabulary, tokens))
            if other is not None and relative_difference(plain, other) > 100 * MOVED:
                evidence = f"with earlier tokens {how}, {name} gives the last one the same output, to {difference:.1g}"
                cause = "positions do not reach the scores, or are the same for several tokens"
                changes = "--model.position rotary", "check that positions differ from token to token"
                yield self.finding(f"positions of the {side}", evidence, cause, *changes)
                return


def reordered(tokens: Tensor) -> dict[str, Tensor]:
    """The tokens [B, N] in other orders, with the last one in its place."""
    length = tokens.shape[1]
    orders = {"in reverse order": reverse_context(tokens)}
    for distance in DISTANCES:
        if distance < length - 2:
            swapped = tokens.clone()
            swapped[:, [length - 2, length - 2 - distance]] = tokens[:, [length - 2 - distance, length - 2]]
            orders[f"{distance + 1} and 1 before it swapped"] = swapped
    return orders
