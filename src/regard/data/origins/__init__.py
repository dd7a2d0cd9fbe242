"""Downloads of the built-in sources: package registries, archives, the cache."""
