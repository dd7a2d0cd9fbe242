"""Conversations and preferences, for fine-tuning language models."""
