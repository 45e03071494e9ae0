"""The commands of ``tenantq``: each module is named after its command."""
