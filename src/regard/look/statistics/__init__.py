"""Measures of attention weights."""
