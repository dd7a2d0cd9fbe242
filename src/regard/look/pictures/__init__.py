"""Pictures of alignments."""
