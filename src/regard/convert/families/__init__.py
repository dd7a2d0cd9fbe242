"""Families of published models, one file each."""
