"""One-place breaks of the code, each of which some test must notice: read by break_laws.py."""

from __future__ import annotations

from typing import NamedTuple


class Break(NamedTuple):
    """``old``, found exactly once in ``file`` of the package, becomes ``new``; ``tests`` are those to notice."""

    name: str
    file: str
    old: str
    new: str
    tests: str


BREAKS = [
    Break(
        "causal: a token does not see itself",
        "attend/mask.py",
        "return pairs.k.order <= pairs.q.order",
        "return pairs.k.order < pairs.q.order",
        "laws/test_masks.py",
    ),
    Break(
        "validity is not ANDed",
        "attend/call.py",
        "return mask.allows(pairs) & valid(pairs)",
        "return mask.allows(pairs)",
        "laws/test_masks.py",
    ),
    Break(
        "reference: GQA repeats heads in the wrong order",
        "attend/reference.py",
        "x.repeat_interleave(shared, dim=1) if",
        "x.repeat(1, shared, 1, 1) if",
        "laws/test_backends.py",
    ),
    Break(
        "sdpa: GQA repeats heads in the wrong order",
        "attend/sdpa.py",
        "k, v = k.repeat_interleave(shared, dim=1), v.repeat_interleave(shared, dim=1)",
        "k, v = k.repeat(1, shared, 1, 1), v.repeat(1, shared, 1, 1)",
        "laws/test_heads.py",
    ),
    Break(
        "reference: -inf, so that a row that sees nothing is NaN",
        "attend/reference.py",
        "return scores.softmax(-1).masked_fill(~seen, 0)",
        "return scores.masked_fill(~seen, -torch.inf).softmax(-1)",
        "laws/test_blind.py",
    ),
    Break(
        "scale is 1/D instead of 1/√D",
        "attend/call.py",
        "1 / math.sqrt(self.q.shape[-1])",
        "1 / self.q.shape[-1]",
        "laws/test_worked_example.py laws/test_heads.py",
    ),
    Break(
        "rolling memory one place too small",
        "attend/memory.py",
        "back + SLACK)",
        "back + SLACK - 1)",
        "laws/test_steps.py",
    ),
    Break(
        "a ragged step moves every row by the longest",
        "models/gpt.py",
        "state.position.add_(real)",
        "state.position.add_(count)",
        "laws/test_steps.py",
    ),
    Break(
        "a decoding step counts positions one too far",
        "models/gpt.py",
        "order = state.position[:, None] + ahead",
        "order = state.position[:, None] + ahead + 1",
        "laws/test_steps.py",
    ),
    Break(
        "rotary turns by a wrong sign",
        "layers/byhand.py",
        "torch.mul(a, cos, out=c).addcmul_(b, sin, value=-1)",
        "torch.mul(a, cos, out=c).addcmul_(b, sin)",
        "laws/test_parts.py",
    ),
    Break(
        "sinusoids have another base",
        "layers/position.py",
        "def sinusoids(phase: Tensor, width: int, base: float = 10_000.0)",
        "def sinusoids(phase: Tensor, width: int, base: float = 1_000.0)",
        "laws/test_parts.py",
    ),
    Break(
        "RMSNorm forgets its eps",
        "layers/byhand.py",
        ".add_(eps).rsqrt_()",
        ".rsqrt_()",
        "laws/test_parts.py",
    ),
    Break(
        "ReLU² is not squared",
        "layers/byhand.py",
        "return positive * positive",
        "return positive",
        "laws/test_parts.py",
    ),
    Break(
        "verdict: ~ swaps may and must",
        "attend/mask.py",
        "Verdict(~inner.must, ~inner.may)",
        "Verdict(~inner.may, ~inner.must)",
        "laws/test_masks.py",
    ),
    Break(
        "reach: a window is one shorter than it says",
        "attend/mask.py",
        "Reach(self.size - 1, self.ahead)",
        "Reach(max(0, self.size - 2), self.ahead)",
        "laws/test_masks.py",
    ),
    Break(
        "flex: a block is read whole without asking whether its slots are valid",
        "attend/flex.py",
        "full = (must & valid.must).expand(shape)",
        "full = must.expand(shape)",
        "laws/test_masks.py",
    ),
    Break(
        "flex: temperature is forgotten where there is a bias",
        "attend/flex.py",
        "bias.adjust(score, pairs) / temperature",
        "bias.adjust(score, pairs)",
        "laws/test_backends.py",
    ),
    Break(
        "packed phases do not restart",
        "attend/slots.py",
        "phase[b, start : start + n] = torch.arange(n)",
        "phase[b, start : start + n] = torch.arange(start, start + n)",
        "laws/test_batches.py",
    ),
    Break(
        "n-grams look into the document before",
        "layers/embed.py",
        ".masked_fill(phase < back, self.vocabulary)",
        "",
        "laws/test_batches.py",
    ),
    Break(
        "sdpa: is_causal is said of tokens that are not the queries' own",
        "attend/sdpa.py",
        "isinstance(mask, Causal) and plan.own",
        "isinstance(mask, Causal)",
        "laws/test_backends.py laws/test_heads.py",
    ),
    Break(
        "sdpa: padded rows are not blanked",
        "attend/sdpa.py",
        "Telling(causal=True, blank=~queries.filled()[:, None, :, None])",
        "Telling(causal=True)",
        "laws/test_backends.py laws/test_blind.py laws/test_batches.py",
    ),
    Break(
        "banded: rows that see nothing are not blanked",
        "attend/banded.py",
        "values.masked_fill(band.blank, 0)",
        "values",
        "laws/test_backends.py laws/test_blind.py",
    ),
    Break(
        "biases of all heads come from the first",
        "attend/bias.py",
        "self.table[pairs.head, apart]",
        "self.table[0 * pairs.head, apart]",
        "laws/test_backends.py",
    ),
    Break(
        "hard lookup does not share ties",
        "attend/reference.py",
        "top.to(scores.dtype) / top.sum(-1, keepdim=True).clamp(min=1)",
        "top.to(scores.dtype)",
        "laws/test_heads.py",
    ),
    Break(
        "a window looks ahead",
        "models/gpt.py",
        "local = Causal() & Window(self.window)",
        "local = Window(self.window, ahead=1)",
        "laws/test_future.py",
    ),
    Break(
        "the soft top-k's threshold has no gradient",
        "attend/reference.py",
        "threshold = threshold + (step - step.detach())",
        "pass",
        "attend/test_topk.py",
    ),
    Break(
        "--no-KEY sets a switch",
        "config/override.py",
        "return name[3:], False",
        "return name[3:], True",
        "laws/test_configs.py",
    ),
    Break(
        "sdpa: labels that differ by row are taken from the first",
        "attend/sdpa.py",
        "device=device, batch=plan.rows)",
        "device=device, batch=max(queries.rows, keys.rows))",
        "laws/test_backends.py",
    ),
    Break(
        "sdpa: a packed row serves the first row of a batch only",
        "attend/sdpa.py",
        "slice(b, b + 1) if len(documents) > 1 else slice(None)",
        "slice(b, b + 1)",
        "laws/test_backends.py",
    ),
    Break(
        "sdpa: scales that are not positive go to the kernel",
        "attend/sdpa.py",
        "if scale <= 0:",
        "if False:",
        "laws/test_backends.py",
    ),
    Break(
        "short: its backward pass forgets the scale",
        "attend/short.py",
        ".mul_(ctx.scale)",
        "",
        "laws/test_backends.py",
    ),
    Break(
        "short: padded rows are not blanked",
        "attend/short.py",
        "values if blank is None else values.masked_fill(blank, 0)",
        "values",
        "laws/test_backends.py",
    ),
    Break(
        "soft top-k: a row with no more than k keys is cut too",
        "attend/reference.py",
        ".masked_fill(few, 0)",
        "",
        "attend/test_topk.py",
    ),
    Break(
        "rotary's backward pass turns forward",
        "layers/byhand.py",
        "_turned(grad, cos, -sin)",
        "_turned(grad, cos, sin)",
        "laws/test_parts.py",
    ),
    Break(
        "RMSNorm's backward pass forgets the mean",
        "layers/byhand.py",
        ".addcmul_(unit, mean, value=-1)",
        "",
        "laws/test_parts.py",
    ),
]
