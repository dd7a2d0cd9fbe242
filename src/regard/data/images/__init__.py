"""Images and their classes."""
