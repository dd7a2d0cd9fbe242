"""Sentence pairs: reading, aligning, batching, near-duplicates."""
