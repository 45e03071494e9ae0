"""Encrypted tenants: through the engine, the service and a real server."""
