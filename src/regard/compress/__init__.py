"""Smaller models from trained ones: quantization, pruning, distillation; what each costs and saves."""
