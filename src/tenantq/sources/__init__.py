"""Queues of other systems, as sources of a migration: each yields its messages, and forgets what was migrated if asked to."""
