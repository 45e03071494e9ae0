"""``python -m tenantq``: the same as the command ``tenantq``."""

from tenantq.cli.main import main

if __name__ == "__main__":  # a process that the server starts imports this file under another name
    main()
