"""Self-checks that the server runs periodically: isolation, keys, quotas, the audit trail."""
