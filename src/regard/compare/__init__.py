"""Comparisons: architectures at equal parameters, FLOPs, tokens or time, trained alike."""
