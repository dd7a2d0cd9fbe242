"""Attention that has collapsed onto single keys, or that weighs all keys alike."""

from regard.doctor import Check, Findings, SidePass

#: The entropy of a head relative to the largest possible one. Training becomes unstable as that of all heads of a layer
#: goes to zero (Zhai et al. 2023, fig. 1); single sharp heads (previous token, induction) are desirable.
COLLAPSED = 0.15
#: From here to 1 a head is uniform. With scores of deviation s the share is 1 - s²/(2 log n): this is s = 0.007 for
#: n = 100, a seventh of what small initial weights (0.02, GPT-2) give before anything is learned.
UNIFORM = 1 - 5e-6
#: The deviation of q·k/√D below which queries and keys are merely small, as in the first layer of a post-norm model
#: during its first hundreds of steps: four times the deviation at `UNIFORM`.
SMALL_SCORES = 0.03


class AttentionCollapse(Check):
    kind, description = "attention_collapse", "attention has collapsed"
    follows = ("exploding_gradients",)
    needs_confirmation = True

    def on_model(self, side_pass: SidePass) -> Findings:
        for name, heads in side_pass.heads.items() if side_pass.deep else ():
            largest = max(head.spread for head in heads)
            if largest < COLLAPSED:
                evidence = f"the entropy of its heads is at most {largest:.1%} of the largest possible"
                cause = "queries and keys are too large: each row attends to one key and ignores the rest"
                yield self.finding(name, evidence, cause, "--model.qk_norm true", "a lower --train.optimizer.lr")


class UniformHeads(Check):
    kind, description = "uniform_heads", "heads weigh all keys alike"
    follows = ("exploding_gradients",)
    needs_confirmation = True

    def on_model(self, side_pass: SidePass) -> Findings:
        for name, heads in side_pass.heads.items() if side_pass.deep else ():
            smallest, size = min(head.spread for head in heads), side_pass.score_sizes.get(name, 1.0)
            if smallest > UNIFORM and (size > SMALL_SCORES or not size):
                evidence = f"the entropy of its heads is within {1 - smallest:.1e} of the largest possible"
                cause = "its scores are scaled to nothing, or its queries or keys are zero: it averages all values"
                normalized = "--model.qk_norm true, which gives scores a fixed size"
                yield self.finding(name, evidence, cause, "check the scale (1/√d is usual)", normalized)
