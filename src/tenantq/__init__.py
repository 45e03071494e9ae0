"""tenantq: a durable work queue for software that serves many tenants."""
