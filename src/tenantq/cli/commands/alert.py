"""``tenantq alert``: active alerts, targets and silences."""

import click

from tenantq.cli import exit_codes
from tenantq.cli.command_group import CommandGroup
from tenantq.cli.connection import ServerConnection, server_command
from tenantq.cli.options import duration
from tenantq.cli.output import Columns, Output, table, time_of
from tenantq.domain.formatting import show_time
from tenantq.domain.names import DEFAULT_TENANT
from tenantq.runtime.clock import SystemClock

_SEVERITY = ("severity", lambda one: f"{one.severity}, silenced" if one.silenced else one.severity)
_ALERTS: Columns = [("since", time_of("since")), _SEVERITY, "kind", "tenant", "queue", "text"]


@click.group(cls=CommandGroup)
def alert() -> None:
    """Show active alerts, test their targets, and silence a tenant's.

    Thresholds and targets are settings of the server ([alerts]) and of tenants (--set alerts.quota_percent=90).
    """


@server_command(alert, name="list")
@click.option("--platform", is_flag=True, help="Alerts of the platform and all tenants, for platform administrators.")
def list_alerts(connection: ServerConnection, *, platform: bool) -> Output:
    """List active alerts of a tenant, or with --platform all, oldest first.

    \b
    Exit codes:
      0  no active alert
      7  at least one active alert
    """
    if platform:
        found, empty = connection.client.platform().alerts().alerts, "no active alerts"
    else:
        tenant = connection.tenant()
        found, empty = tenant.alerts(), f"no active alerts in tenant {tenant.name}"
        if connection.target.tenant is None and tenant.name == DEFAULT_TENANT:  # a platform administrator's own
            empty += "; use --platform for all tenants"
    code = exit_codes.CONFLICT if found else exit_codes.OK
    return Output({"alerts": found}, table(_ALERTS, found, empty), code=code)


@server_command(alert)
@click.argument("target", required=False)
def test(connection: ServerConnection, *, target: str | None) -> Output:
    """Send a test notification to TARGET. Without TARGET, list the targets of the server.

    \b
    Exit codes:
      0  the target accepted the notification
      7  the target did not accept it
    """
    platform = connection.client.platform()
    if target is None:
        targets = platform.alerts().targets
        return Output(
            {"targets": targets}, "\n".join(targets) or "no targets; define them in the server's settings, [alerts]"
        )
    found = platform.test_alert_target(target)
    if found.delivered:
        return Output(found, f"target {target} accepted the notification")
    return Output(found, f"target {target} did not accept the notification: {found.error}", code=exit_codes.CONFLICT)


@server_command(alert)
@click.argument("name", metavar="TENANT")
@click.option("--for", "length_ms", type=duration, default="1h", help="How long.")
def silence(connection: ServerConnection, *, name: str, length_ms: int) -> Output:
    """Silence new alerts about TENANT for a while. They are still listed and journaled. Alerts that outlast the silence are sent then."""
    if not length_ms:
        raise click.BadParameter(
            "must be longer than 0. Use 'tenantq alert unsilence' to end a silence.", param_hint="--for"
        )
    until = SystemClock().wall_ms() + length_ms
    found = connection.client.tenant(name)
    found.get()
    return Output(
        found.configure(alerts={"silenced_until": until}),
        f"alerts of tenant {name} are silenced until {show_time(until)}",
    )


@server_command(alert)
@click.argument("name", metavar="TENANT")
def unsilence(connection: ServerConnection, *, name: str) -> Output:
    """End a silence: send alerts about TENANT again."""
    found = connection.client.tenant(name)
    found.get()
    return Output(found.configure(alerts={"silenced_until": None}), f"alerts of tenant {name} are sent again")
