"""The lake: its tables on disk, its state, its archive, and the erasure of tenants."""
