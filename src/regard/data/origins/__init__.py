"""Where the built-in sources come from: package registries, archives, the download cache."""
