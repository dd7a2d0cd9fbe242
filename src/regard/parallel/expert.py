"""Expert parallelism: each rank has some of the experts of every mixture (Lepikhin et al. 2021, sec. 3.2).

The tokens of a rank travel to the ranks of their experts and their outputs travel back, both in one exchange of all
ranks of a group. An expert so gets the tokens, and the gradient, of its whole group.
"""

from collections.abc import Callable, Iterator
from typing import Any, cast

import torch
from torch import Tensor, distributed, nn
from torch.autograd import Function
from torch.autograd.function import once_differentiable
from torch.distributed import ProcessGroup

from regard.errors import UserError
from regard.models import Model
from regard.nn.experts.grouped import dispatch
from regard.nn.experts.moe import Exchange, MixtureOfExperts
from regard.nn.experts.routing import order
from regard.nn.linear import Linear
from regard.parallel.pieces import Cut
from regard.parallel.world import World


def apply(model: Model, world: World) -> None:
    """Leave this rank's experts in every mixture of ``model``, in place, and record ``model.cuts``."""
    ranks = world.layout.expert
    if ranks == 1:
        return
    group = cast(ProcessGroup, world.group("expert"))  # none for a plan, which needs shapes only
    names: dict[nn.Parameter, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        names.setdefault(parameter, []).append(name)
    for mixture in _mixtures(model, world):
        each = mixture.config.experts // ranks
        first = world.part % ranks * each
        for layer in _stacks(mixture):
            _cut(model, layer, names, first, first + each, mixture.config.experts)
        mixture.exchange = AllToAll(group)
    model.compilable = False  # the host reads how many tokens travel


def expert_parameters(model: nn.Module) -> dict[MixtureOfExperts, set[nn.Parameter]]:
    """The parameters of experts that are on several ranks, by mixture. Only ``World.experts`` sums their gradients."""
    mixtures = [module for module in model.modules() if isinstance(module, MixtureOfExperts)]
    return {
        mixture: {parameter for layer in _stacks(mixture) for parameter in layer.parameters()}
        for mixture in mixtures
        if isinstance(mixture.exchange, AllToAll)
    }


class AllToAll(Exchange):
    """Sends each row to the rank of its expert, and its output back."""

    graphable = False

    def __init__(self, group: ProcessGroup):
        self.group = group

    def __call__(self, rows: Tensor, ends: Tensor, networks: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
        counts = ends.diff(prepend=ends.new_zeros(1)).view(self.group.size(), -1)  # [ranks, experts of each]
        theirs = torch.empty_like(counts)  # [ranks, experts here]
        distributed.all_to_all_single(theirs, counts, group=self.group)
        sent, received = torch.stack([counts.sum(1), theirs.sum(1)]).tolist()
        arrived = _Travel.apply(rows, received, sent, self.group)
        # They are sorted by rank; the networks need them sorted by expert.
        experts = torch.arange(theirs.shape[1], device=rows.device).repeat(len(theirs))
        experts = experts.repeat_interleave(theirs.flatten(), output_size=len(arrived))
        there = order(experts[:, None], theirs.shape[1])
        back = there._replace(token=there.place, pair=there.place, place=there.pair)
        outputs = networks(dispatch(arrived, there), there.ends)
        return _Travel.apply(dispatch(outputs, back), sent, received, self.group)

    def shared(self, weight: Tensor) -> Tensor:
        return _SumGradient.apply(weight, self.group)


class _Travel(Function):
    """Rows to other ranks: of x, ``sent[r]`` to rank r, and ``received[r]`` from it, in the order of ranks."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, received: list[int], sent: list[int], group: ProcessGroup) -> Tensor:
        ctx.received, ctx.sent, ctx.group = received, sent, group
        return _travel(x, received, sent, group)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        return _travel(grad, ctx.sent, ctx.received, ctx.group), None, None, None


def _travel(x: Tensor, received: list[int], sent: list[int], group: ProcessGroup) -> Tensor:
    out = x.new_empty(sum(received), *x.shape[1:])
    distributed.all_to_all_single(out, x.contiguous(), received, sent, group=group)
    return out


class _SumGradient(Function):
    """A weight that is the same on all ranks of a group; its gradient is the sum of theirs."""

    @staticmethod
    def forward(ctx: Any, weight: Tensor, group: ProcessGroup) -> Tensor:
        ctx.group = group
        return weight.view_as(weight)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        grad = grad.clone(memory_format=torch.contiguous_format)
        distributed.all_reduce(grad, group=ctx.group)
        return grad, None


def _mixtures(model: Model, world: World) -> list[MixtureOfExperts]:
    """The mixtures of ``model``; what expert parallelism cannot do is refused."""
    ranks = world.layout.expert
    if world.layout.tensor > 1:
        raise UserError(
            "experts and the parts of a layer cannot both be shared; use --layout.expert or --layout.tensor"
        )
    mixtures = [module for module in model.modules() if isinstance(module, MixtureOfExperts)]
    if not mixtures:
        raise UserError(f"a {model.config.kind} without experts cannot share them; use --layout.expert 1")
    for mixture in mixtures:
        if mixture.config.experts % ranks:
            raise UserError(
                f"--layout.expert {ranks} does not divide the {mixture.config.experts} experts of a layer; choose a "
                "divisor"
            )
        if mixture.drop.p:
            raise UserError(
                "dropout inside of experts would depend on the layout; set --model.feedforward.dropout 0, or use "
                "--layout.expert 1"
            )
    return mixtures


def _stacks(mixture: MixtureOfExperts) -> Iterator[Linear]:
    """The layers that hold one matrix for each expert."""
    return (layer for layer in mixture.children() if isinstance(layer, Linear) and layer is not mixture.router)


def _cut(
    model: Model, layer: Linear, names: dict[nn.Parameter, list[str]], first: int, last: int, experts: int
) -> None:
    """Keep the matrices of the experts from ``first`` to ``last``, and of the shared ones after all ``experts``."""
    rows, count = layer.parts[0], len(layer.parts)
    ranges = ((first * rows, last * rows), *([(experts * rows, count * rows)] if count > experts else []))
    for key, parameter in list(layer.named_parameters(recurse=False)):
        cut = Cut(tuple(parameter.shape), 0, ranges, "expert", repeated=len(ranges) - 1)
        model.cuts |= dict.fromkeys(names[parameter], cut)
        setattr(layer, key, nn.Parameter(cut.of(parameter.detach()), parameter.requires_grad))
    layer.parts = (rows,) * (last - first + count - experts)
    layer.out_features = sum(layer.parts)
