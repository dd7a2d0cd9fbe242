"""Published models: read as data, never run, and rebuilt from this library's own parts."""
