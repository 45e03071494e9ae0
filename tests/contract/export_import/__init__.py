"""Moving a tenant: the import restores exactly what was exported."""
