"""Units, heads and experts of a layer that do no work: constant, copies of others, or unevenly used."""

import torch
from torch import Tensor, nn

from regard.doctor import Check, Findings, ModelPass, SidePass
from regard.doctor.calls import ModuleCall

#: The share of a layer's units that are constant over hundreds of tokens. Trained ReLU networks do well with half of
#: them, in early layers even 70 % (Voita et al. 2023, sec. 3), not with more.
DEAD = 0.72
#: The same where no other unit is ever zero: units of smooth activations do not die, they are masked. And the share of
#: units that are equal to another one for every token.
MASKED = COPIED = 0.05
FEWEST = 64  # tokens from which on a constant unit is evidence
#: The entropy of a head relative to the largest possible one. Training becomes unstable as that of all heads of a layer
#: goes to zero (Zhai et al. 2023, fig. 1); single sharp heads (previous token, induction) are desirable.
COLLAPSED = 0.15
#: Outputs of recurrent units this near to the ends of their range, and the share of them from which on the layer is a
#: table of signs: trained layers of the recipes have below a tenth.
END, SATURATED = 1e-3, 0.4
KEYS = 8  # with fewer, to attend to one of them is the whole task
#: From here to 1 a head is uniform. With scores of deviation s the share is 1 - s²/(2 log n): this is s = 0.007 for
#: n = 100, a seventh of what small initial weights (0.02, GPT-2) give before anything is learned.
UNIFORM = 1 - 5e-6
#: The deviation of q·k/√D below which queries and keys are merely small, as in the first layer of a post-norm model
#: during its first hundreds of steps: four times the deviation at `UNIFORM`.
SMALL_SCORES = 0.03


class DeadUnits(Check):
    kind, description = "dead_units", "units are dead"
    needs_confirmation = True

    def on_pass(self, model_pass: ModelPass) -> Findings:
        last = {call.name: call for call in model_pass.calls if read_units(call) is not None}
        attends = bool(model_pass.model.mechanisms())  # a wide convolution reads padding, which is constant
        for name, call in last.items():
            x = read_units(call)
            assert x is not None
            least, most = x.aminmax(dim=0)
            varies = least != most
            live, units = x[:, varies], x.shape[-1]
            constant, copied = units - live.shape[1], live.shape[1] - distinct(live)
            smooth = attends and live.numel() > 0 and not bool((live == 0).any())
            where = name if isinstance(call.module, nn.RNNBase) else name.rpartition(".")[0] or name
            if constant > (MASKED if smooth else DEAD) * units:
                evidence = f"{constant:,} of the {units:,} units that {name} reads are the same for every token"
                cause = "activations that are always off or always saturated: biases or weights out of range"
                changes = "a lower --train.optimizer.lr", "--model.feedforward gelu, which never cuts off fully"
                yield self.finding(where, evidence, cause, *changes)
            elif copied > COPIED * units:
                evidence = (
                    f"{copied:,} of the {units:,} units that {name} reads are equal to another one for every token"
                )
                cause = "heads or units are copies: they began with equal weights, or a reshape repeats them"
                yield self.finding(where, evidence, cause, "draw every weight of a matrix independently")


class SaturatedUnits(Check):
    """Recurrent units at the ends of their range forget nothing and learn nothing: the derivative there is zero."""

    kind, description = "saturated_units", "units are saturated"

    def on_pass(self, model_pass: ModelPass) -> Findings:
        for name, module, _, output in model_pass.calls:
            if not isinstance(module, nn.RNNBase) or output.numel() < FEWEST * module.hidden_size:
                continue
            share = float((output.abs() > 1 - END).float().mean())
            if share > SATURATED:
                sizes = (float(p.detach().std()) for n, p in module.named_parameters() if n.startswith("weight_hh"))
                evidence = f"{share:.0%} of its outputs are within {END} of -1 or 1, and its recurrent weights have a "
                evidence += f"deviation of {max(sizes):.2g}, where orthogonal ones have {module.hidden_size**-0.5:.2g}"
                cause = "recurrent or input weights that are far too large, from the start or by too high a rate"
                orthogonal = "initialize recurrent matrices as orthogonal ones"
                yield self.finding(name, evidence, cause, orthogonal, "a lower --train.optimizer.lr")


def read_units(call: ModuleCall) -> Tensor | None:
    """The units [N, C] that a linear layer of a block reads or a recurrent one makes; None for other layers."""
    numbered = any(part.isdigit() for part in call.name.split("."))
    x = call.output if isinstance(call.module, nn.RNNBase) else None
    if isinstance(call.module, nn.Linear) and numbered and call.inputs:
        x = call.inputs[0]
    return None if x is None or x.shape[:-1].numel() < FEWEST else x.flatten(0, -2)


def distinct(x: Tensor) -> int:
    """The number of different columns of [N, C]: equal ones have equal sums with random weights."""
    weights = torch.rand(len(x), generator=torch.Generator().manual_seed(1)).to(x)
    return len((weights[:, None] * x).double().sum(0).unique())


class AttentionEntropy(Check):
    kind, description = "attention_entropy", "attention weighs one key alone, or all keys alike"
    follows = ("exploding_gradients",)
    needs_confirmation = True

    def on_model(self, side_pass: SidePass) -> Findings:
        keys = side_pass.tokens.shape[1]
        for name, heads in side_pass.heads.items() if side_pass.deep and keys >= KEYS else ():
            spreads, size = [head.spread for head in heads], side_pass.score_sizes.get(name, 1.0)
            if max(spreads) < COLLAPSED:
                evidence = f"the entropy of its heads is at most {max(spreads):.1%} of the largest possible"
                cause = "queries and keys are too large: each row attends to one key and ignores the rest"
                yield self.finding(name, evidence, cause, "--model.qk_norm true", "a lower --train.optimizer.lr")
            elif min(spreads) > UNIFORM and (size > SMALL_SCORES or not size):
                evidence = f"the entropy of its heads is within {1 - min(spreads):.1e} of the largest possible"
                cause = "its scores are scaled to nothing, or its queries or keys are zero: it averages all values"
                normalized = "--model.qk_norm true, which gives scores a fixed size"
                yield self.finding(name, evidence, cause, "check the scale (1/√d is usual)", normalized)
