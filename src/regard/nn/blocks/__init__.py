"""Transformer blocks and the stack that runs them."""
