"""Attention weights as explanations: do they rank tokens as the effect of their removal does?

Attention is not Explanation (Jain & Wallace 2019) and is not not Explanation (Wiegreffe & Pinter 2019).
"""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from regard.attention import Range
from regard.attention.slots import EMPTY, AnySlots, Slots
from regard.data import TextConfig
from regard.look.capture.observe import attentions, dense_weights, evaluation_mode
from regard.look.statistics.maps import rollout
from regard.measure.interval import Mean
from regard.models import GPTConfig
from regard.models.base import LanguageModel
from regard.models.gpt import GPT
from regard.pages.charts import Axes
from regard.pages.html import ChartSection
from regard.studies.page import Study, machine
from regard.studies.short_training import held_out, train_shortly
from regard.train import AdamWConfig, CosineScheduleConfig, Experiment, TrainConfig

LAYERS, HEADS, WIDTH, CONTEXT = 3, 4, 64, 64
STEPS, SEEDS, TARGETS, DRAWS = 600, 3, 128, 2
MEAN, ROLLOUT, GRADIENT, NEARNESS = "mean of all heads", "rollout", "|gradient × input|", "nearness"
REPLACING = "effect of replacing"  # in the place of an explanation: how far two definitions of an effect agree
WHOLE = (MEAN, ROLLOUT)  # what is usually shown as "the attention" of a model
COLUMNS = ("explanation", "rank correlation", "without nearness", "replaced", "same first token")


class Agreement(NamedTuple):
    """How well an explanation agrees with the measured effects, a value for each target."""

    correlation: list[float]  # of the ranks (Spearman)
    partial: list[float]  # the same between tokens that are equally near
    replaced: list[float]  # of the ranks, with the effects of replacing a token by another
    first: list[float]  # 1 if both name the same token as the most important


Found = dict[str, Agreement]


def study(scale: float, seed: int, say: Callable[[str], None]) -> Study:
    """Is attention an explanation? The rank correlation of weights with the measured effect of removing each token.

    regard study explanation

    Three character models of Shakespeare with 3 layers of 4 heads, trained for 600 steps. For the last position of
    128 held-out windows of 64 characters, every earlier character is removed in turn (no query sees it in any layer)
    or replaced by another, and the distance of the predictions is compared with the weights of each head, means over
    heads, attention rollout, gradient times input, and the nearness of the character. Two minutes on one core.
    """
    steps = max(2, round(STEPS * scale))
    data_config = TextConfig(batch=16)
    data = data_config.build(CONTEXT)
    targets = max(4, round(TARGETS * min(1, scale)))
    (batch,) = held_out(data, targets, 1)
    config = GPTConfig(vocabulary=data.vocabulary, context=CONTEXT, width=WIDTH, heads=HEADS, layers=LAYERS)
    train = TrainConfig(steps, optimizer=AdamWConfig(), schedule=CosineScheduleConfig(warmup=0.05), device="cpu")
    models: list[Found] = []
    for n in range(SEEDS):
        model = train_shortly(Experiment(config, data_config, train=train, seed=seed + n), data).model
        assert isinstance(model, GPT)
        models.append(agreements(model, batch.inputs, seed + n))
        say(f"seed {seed + n}: {', '.join(f'{name} {Mean.of(one.correlation)}' for name, one in models[-1].items())}")
    found = {name: pooled([one[name] for one in models]) for name in models[0]}
    return Study(
        words(found, models),
        [_summary(found), _by_head(models, seed)],
        {"by_seed": [{name: one._asdict() for name, one in model.items()} for model in models]},
        f"{LAYERS} layers of {HEADS} heads, width {WIDTH}, {CONTEXT} characters, batch 16, {steps} steps, AdamW, "
        f"{targets} targets, seeds {seed} to {seed + SEEDS - 1}, {machine()}",
    )


def agreements(model: GPT, inputs: Tensor, seed: int) -> Found:
    """The agreement of every explanation with the effects of removing and of replacing a token."""
    removed, replaced = removal_effects(model, inputs), replacement_effects(model, inputs, seed)
    shown = {**explanations(model, inputs), REPLACING: replaced}
    return {name: agreement(one, removed, replaced) for name, one in shown.items()}


def removal_effects(model: LanguageModel, inputs: Tensor) -> Tensor:
    """[B, N - 1]: how far the prediction at the last position moves without each earlier token.

    The total variation distance of the two distributions (Jain & Wallace 2019, sec. 3). A removed token is an empty
    slot: no query of any layer sees it, and the others keep their positions. The last token is the query itself.
    """
    count = inputs.shape[1]
    order = torch.arange(count).expand(count - 1, -1)
    segment = torch.zeros(count - 1, count, dtype=torch.long).masked_fill_(torch.eye(count)[:-1].bool(), EMPTY)
    slots = Slots(order, segment, order)
    return torch.stack([_distances(model, row, row.expand(count - 1, -1), slots) for row in inputs])


def replacement_effects(model: LanguageModel, inputs: Tensor, seed: int) -> Tensor:
    """The same with each earlier token replaced by a random one of the windows; the mean over draws."""
    generator, count, tokens = torch.Generator().manual_seed(seed), inputs.shape[1], inputs.flatten()
    effects = []
    for row in inputs:
        for _ in range(DRAWS):
            drawn = tokens[torch.randint(len(tokens), (count - 1,), generator=generator)]
            others = row.expand(count - 1, -1).clone()
            others.diagonal().copy_(drawn)
            effects.append(_distances(model, row, others, Range(count)))
    return torch.stack(effects).unflatten(0, (-1, DRAWS)).mean(1)


def _distances(model: LanguageModel, row: Tensor, others: Tensor, slots: AnySlots) -> Tensor:
    """The total variation distance of the prediction at the end of each of the ``others`` from that of ``row``."""
    with evaluation_mode(model):
        whole = model.head(model.features(row[None])[:, -1]).softmax(-1)
        return (model.head(model.features(others, slots)[:, -1]).softmax(-1) - whole).abs().sum(-1) / 2


def explanations(model: GPT, inputs: Tensor) -> dict[str, Tensor]:
    """[B, N - 1] each: what every explanation says of the earlier tokens, for the prediction at the last position."""
    layers = attentions(model, lambda: model.features(inputs))
    last = torch.stack([dense_weights(one)[:, :, -1, :-1] for one in layers])  # [L, B, H, N - 1]
    found = {f"{i}.{h}": last[i - 1, :, h - 1] for i in range(1, len(last) + 1) for h in range(1, last.shape[2] + 1)}
    found |= {f"mean of layer {i}": one.mean(1) for i, one in enumerate(last, 1)}
    found[MEAN] = last.mean((0, 2))
    count, rows = inputs.shape[1], []
    for b in range(len(inputs)):
        own = [one._replace(q=one.q[b : b + 1], k=one.k[b : b + 1]) for one in layers]
        rows.append(torch.from_numpy(rollout(own, count)[-1, :-1]))
    found[ROLLOUT] = torch.stack(rows)
    found[GRADIENT] = gradient_times_input(model, inputs)[:, :-1]
    found[NEARNESS] = torch.arange(count - 1.0).expand(len(inputs), -1)
    return found


def gradient_times_input(model: GPT, inputs: Tensor) -> Tensor:
    """|e_j · ∂ log p / ∂e_j| [B, N] of the most probable next token, for the embeddings e (Simonyan et al. 2013)."""
    kept: list[Tensor] = []

    def keep(_: torch.nn.Module, __: object, out: Tensor) -> Tensor:
        kept.append(out.detach().requires_grad_())
        return kept[0]

    model.eval()
    with model.embed.register_forward_hook(keep):
        logits = model.head(model.features(inputs)[:, -1])
    (slopes,) = torch.autograd.grad(logits.log_softmax(-1).amax(-1).sum(), kept)
    return (slopes * kept[0]).sum(-1).abs().detach()


def ranks(values: Tensor) -> Tensor:
    """Ranks [..., n], 1 for the smallest; equal values share the mean of theirs."""
    left, right = values[..., :, None], values[..., None, :]
    return (left > right).sum(-1) + ((left == right).sum(-1) + 1) / 2


def spearman(a: Tensor, b: Tensor) -> Tensor:
    """The correlation of the ranks along the last axis; 0 where all values of one are equal."""
    a, b = (ranks(x).double() for x in (a, b))
    a, b = (x - x.mean(-1, keepdim=True) for x in (a, b))
    return (a * b).sum(-1) / (a.norm(dim=-1) * b.norm(dim=-1)).clamp(min=1e-12)


def agreement(explanation: Tensor, effects: Tensor, replaced: Tensor) -> Agreement:
    """Spearman's correlation of each row, and the partial one, given the nearness (Kendall 1942)."""
    near = torch.arange(effects.shape[-1]).expand_as(effects)
    both, one, other = spearman(explanation, effects), spearman(explanation, near), spearman(effects, near)
    rest = ((1 - one**2).clamp(min=0) * (1 - other**2).clamp(min=0)).sqrt()
    partial = torch.where(rest > 1e-6, (both - one * other) / rest.clamp(min=1e-6), 0.0)
    first = explanation.argmax(-1) == effects.argmax(-1)
    other_effect = spearman(explanation, replaced)
    return Agreement(both.tolist(), partial.tolist(), other_effect.tolist(), first.double().tolist())


def pooled(some: Sequence[Agreement]) -> Agreement:
    """The values of several models."""
    return Agreement(*([value for values in column for value in values] for column in zip(*some, strict=True)))


def words(found: Mapping[str, Agreement], models: Sequence[Found]) -> list[str]:
    """How the explanations rank tokens, compared with their nearness alone."""
    total = {name: Mean.of(one.correlation) for name, one in found.items()}
    heads = [Mean.of(one.correlation).value for model in models for name, one in model.items() if name[0].isdigit()]
    near, gradient = total[NEARNESS], total[GRADIENT]
    shown = ", ".join(f"{name} {total[name]}" for name in (*WHOLE, GRADIENT, NEARNESS))
    partial = ", ".join(f"{name} {Mean.of(found[name].partial)}" for name in (*WHOLE, GRADIENT))
    replaced = ", ".join(f"{name} {Mean.of(found[name].replaced)}" for name in (*WHOLE, GRADIENT, NEARNESS))
    first = ", ".join(f"{name} {Mean.of(found[name].first).value:.0%}" for name in (*WHOLE, GRADIENT, NEARNESS))
    sentences = [
        f"Spearman's rank correlation with the measured effect of removing a token: {shown}.",
        f"Single heads: from {min(heads):.3f} to {max(heads):.3f}, "
        + ("all below the mean of all heads" if max(heads) < total[MEAN].value else "some above the mean of all heads")
        + ". Which head agrees best is known only after the effects are measured.",
    ]
    for name in WHOLE:
        one = total[name]
        sentences.append(
            f"The {name} ranks tokens {_compared(one, near)} their nearness alone and {_compared(one, gradient)} "
            "gradient × input."
        )
    return [
        *sentences,
        f"Partial correlation, given the nearness: {partial}.",
        f"With the effect of replacing a token by another: {replaced}. The two effects agree by {total[REPLACING]}: "
        "removal hides a token from attention alone, which may favor weights as an explanation of it.",
        f"The token that matters most is named by: {first}.",
        f"± is half the 95% confidence interval over {len(found[MEAN].correlation)} targets of {len(models)} models. "
        "A removed token leaves a gap, which training did not have, "
        "and tokens that replace each other have small effects one at a time. A correlation says nothing about whether "
        "other weights would give the same prediction (Wiegreffe & Pinter 2019). Small character models.",
    ]


def _compared(one: Mean, other: Mean) -> str:
    """A comparison that allows for both intervals."""
    if abs(one.value - other.value) <= one.error + other.error:
        return "about as well as"
    return "better than" if one.value > other.value else "worse than"


def _row(name: str, one: Agreement) -> tuple[str, ...]:
    return (
        name,
        str(Mean.of(one.correlation)),
        str(Mean.of(one.partial)),
        str(Mean.of(one.replaced)),
        f"{Mean.of(one.first).value:.0%}",
    )


def _summary(found: Found) -> ChartSection:
    shown = {name: one for name, one in found.items() if not name[0].isdigit()}
    order = sorted(shown, key=lambda name: -Mean.of(shown[name].correlation).value)
    return ChartSection(
        "Rank correlation with the measured effect",
        "Spearman's correlation over the earlier characters of a window, the mean over windows and models: 1 if an "
        "explanation orders the characters as their removal does, 0 if the orders are unrelated. Without nearness: the "
        "partial correlation, given how near a character is. Replaced: with the effect of another character there.",
        [],
        Axes("", "rank correlation"),
        named=[(name, Mean.of(shown[name].correlation).value) for name in order],
        columns=COLUMNS,
        rows=[_row(name, shown[name]) for name in order],
    )


def _by_head(models: Sequence[Found], seed: int) -> ChartSection:
    heads = [name for name in models[0] if name[0].isdigit()]
    rows = [_row(f"{name}, seed {seed + n}", model[name]) for n, model in enumerate(models) for name in heads]
    return ChartSection(
        f"Each head, seed {seed}",
        "The same for the weights of one head; layer and head are counted from 1. The table has every model.",
        [],
        Axes("", "rank correlation"),
        named=[(name, Mean.of(models[0][name].correlation).value) for name in heads],
        line=0.0,
        columns=COLUMNS,
        rows=rows,
    )
