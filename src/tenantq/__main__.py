"""``python -m tenantq``: the same as the command ``tenantq``."""

from tenantq.cli.main import main

main()
