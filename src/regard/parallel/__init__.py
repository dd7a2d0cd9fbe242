"""Several processes for one model: ranks, layouts, sharding."""
