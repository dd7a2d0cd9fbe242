"""Fast paths for layers. ``install`` puts them into a model; the readable layers never import this package."""

from regard.nn.fused.install import FastPath, install
