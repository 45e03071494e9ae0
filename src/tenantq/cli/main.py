"""The entry point. It imports the command line late, so an interrupt during the imports ends the process silently."""

import signal
import sys


def main() -> None:
    """Run the command line and exit with its code."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # imports need no clean-up
    from tenantq.cli.command_line import run  # noqa: PLC0415  # see above
    from tenantq.cli.standard_streams import flushed, open_missing  # noqa: PLC0415  # as above

    open_missing()
    if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    code = run(sys.argv[1:])
    sys.exit(code if flushed() else code or 1)
