"""Mechanisms other than plain softmax attention, one file each."""
