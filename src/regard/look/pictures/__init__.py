"""Pictures of masks and alignments."""
