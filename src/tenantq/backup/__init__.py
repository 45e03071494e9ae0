"""Backups of a running server, and their restore."""
