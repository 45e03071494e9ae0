"""Queues of other systems as sources of a migration. Each yields its messages and, in a drain, deletes those that were migrated."""
