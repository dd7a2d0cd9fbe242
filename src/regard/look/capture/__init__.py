"""Recording the inputs of attention in one forward pass."""
