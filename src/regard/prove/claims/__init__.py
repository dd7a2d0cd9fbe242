"""The claims of this library, one per file; every file here is imported by ``regard.prove.registry.all_claims``."""
