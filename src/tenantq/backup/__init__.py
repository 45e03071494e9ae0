"""Backups of a running server, and what becomes a server again from them."""
