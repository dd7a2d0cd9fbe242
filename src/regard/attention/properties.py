"""What a module declares about its outputs."""

from __future__ import annotations


class ModuleProperties:
    """Base class of modules whose outputs may lack a property that others have.

    `regard prove` skips a claim that a module declares not to keep, and names the module.
    """

    steppable: bool = True  # decoding token by token gives the outputs of the full forward pass
    batch_invariant: bool = True  # the output for a row does not depend on the other rows
    graphable: bool = True  # a forward pass never waits for the GPU, so a CUDA graph can capture it
    discontinuous: bool = False  # selects a few of many by score (top-k, hashing, routing): rounding may change them
