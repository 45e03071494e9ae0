"""The entry point. It loads next to nothing by itself: an interrupt while the rest is loaded ends the process without a word."""

from __future__ import annotations

import signal
import sys


def main() -> None:
    """Run the command line, and end the process with its exit code."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # loading is no work that would have to end in good order
    from tenantq.cli.command_line import run  # noqa: PLC0415  # see above
    from tenantq.cli.standard_streams import flushed, open_missing  # noqa: PLC0415  # as above

    open_missing()
    if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    code = run(sys.argv[1:])
    sys.exit(code if flushed() else code or 1)
