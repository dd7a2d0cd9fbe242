"""Tiling: which rectangles of the score matrix a mask leaves, and how they are computed and merged."""
