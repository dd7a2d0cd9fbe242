"""The commands: one module each, holding a function of the same name. What needs torch is imported inside."""
