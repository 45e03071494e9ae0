"""``tenantq pipeline``: one file per command, named ``<command>_command.py``, which holds a command of that name."""
