"""Key management systems that wrap tenants' data keys: one interface, four providers."""
