"""The entry point of a shard process, started by its supervisor: ``python -m tenantq.cli.shard_process FD``.

It ignores signals. The supervisor handles them and stops its shards.
"""

import signal
import socket
import sys

from tenantq.cli import exit_codes
from tenantq.cli.commands.serve import closed, run_loop, show_token
from tenantq.cli.logs import set_up_logs
from tenantq.cluster.supervision.messages import ShardStartup
from tenantq.cluster.supervision.shard_runner import ShardRunner, receive_startup
from tenantq.errors import TenantqError
from tenantq.settings import shown_url


def main() -> int:
    """Serve until the supervisor stops this process."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    control = socket.socket(fileno=int(sys.argv[1]))
    startup = receive_startup(control)
    settings, spec = startup.settings, startup.spec
    name = spec.shards[spec.number].name if spec is not None else f"process {startup.number}"
    set_up_logs(settings.log_level, settings.log_format, name)
    return run_loop(_serve(startup, control))


async def _serve(startup: ShardStartup, control: socket.socket) -> int:
    url = shown_url(startup.settings, startup.http_addresses[0].port)
    runner = ShardRunner(startup, control, lambda token: show_token(token, url))
    try:
        grace_ms = await runner.run()
    except TenantqError:
        return exit_codes.UNAVAILABLE
    return await closed(runner.server, grace_ms) if runner.has_started else exit_codes.OK


if __name__ == "__main__":
    sys.exit(main())
