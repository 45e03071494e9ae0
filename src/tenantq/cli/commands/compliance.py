"""``tenantq compliance``: whether the controls of a tenant or the platform pass."""

import click

from tenantq.cli import exit_codes
from tenantq.cli.connection import ServerConnection, server_command
from tenantq.cli.output import Columns, Output, Table, table
from tenantq.domain.formatting import plural

_STATUS = ("status", lambda one: one.status.replace("_", " "))
_CONTROLS: Columns = ["control", _STATUS, ("SOC 2", "soc2"), ("GDPR", "gdpr"), "passed", "failed", "threshold"]


@server_command(None)
@click.option("--platform", is_flag=True, help="Controls of the platform and all tenants, for platform administrators.")
def compliance(connection: ServerConnection, *, platform: bool) -> Output:
    """Evaluate compliance controls of a tenant, or with --platform of the server and all tenants.

    Thresholds are settings of the server ([compliance]).

    \b
    Exit codes:
      0  no control fails
      7  at least one control fails
    """
    found = connection.client.platform().compliance() if platform else connection.tenant().compliance()
    failed = [
        (one.control, item.tenant or "platform", item.subject, item.text)
        for one in found.controls
        for item in one.evidence
        if not item.passed
    ]
    hidden = sum(one.failed for one in found.controls) - len(failed)
    return Output(
        found,
        table(_CONTROLS, found.controls, "no controls"),
        *([Table(("control", "tenant", "subject", "failed evidence"), failed, "")] if failed else []),
        *([f"{plural(hidden, 'more failed fact')} not listed"] if hidden else []),
        code=exit_codes.CONFLICT if found.status == "fail" else exit_codes.OK,
    )
