"""Scenes of digits, made from captions of a small grammar."""
