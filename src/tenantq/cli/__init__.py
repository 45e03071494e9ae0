"""The command ``tenantq``."""
