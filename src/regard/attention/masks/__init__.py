"""Masks: which query may see which key, as an algebra of small values."""
