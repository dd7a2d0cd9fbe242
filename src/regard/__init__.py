"""regard: sequence models on one attention operator."""

__version__ = "0.1.0"
