"""Fast paths for layers, installed from outside."""
