"""Text for language models: files, tokens, windows, splits."""
