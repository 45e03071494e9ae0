"""Backups are created on a running server and can be restored."""
