"""Backends: implementations of one attention call; each lists why it refuses a call."""
