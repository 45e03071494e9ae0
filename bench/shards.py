"""Several shards behind one address: adds of one message by wrk, with one and two shards, sent to the owner or forwarded.

Every shard has its own tenant and its own load, which sends to the owner's address or to the other shard's, which forwards everything.
On two cores the shards compete with the load, so two shards cannot do twice the work of one: compare the last two rows.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from itertools import count
from typing import TYPE_CHECKING

from bench.processes import TOKEN, tenantq
from bench.table import Table
from tenantq.client import AsyncClient

if TYPE_CHECKING:
    from pathlib import Path

_CONNECTIONS = 64
_SCRIPT = """
wrk.method = "POST"
wrk.headers["Content-Type"] = "application/json"
wrk.headers["Authorization"] = "Bearer {token}"
wrk.body = '{{"messages":[{{"body":"{body}"}}]}}'
"""


async def run(directory: Path, *, quick: bool) -> None:
    if shutil.which("wrk") is None:
        print("wrk is not installed; no other load generator is fast enough")
        return
    script = directory / "add.lua"
    script.write_text(_SCRIPT.format(token=TOKEN, body="x" * 100))
    seconds = 2 if quick else 10
    table = Table("shards", "adds", "messages/s", "p50 ms", "p99 ms")
    for shards in (1, 2):
        with tenantq(directory / f"data-{shards}", TENANTQ_SHARDS__COUNT=str(shards)) as url:
            tenants, addresses = await _places(url, shards)
            for how in range(shards):
                targets = [addresses[(number + how) % shards] for number in range(shards)]
                _load(table, script, shards, "passed on" if how else "straight", tenants, targets, seconds)
            if shards > 1:
                _load(table, script, shards, "through the common address", tenants, [url] * shards, seconds)
    table.show()


async def _places(url: str, shards: int) -> tuple[list[str], list[str]]:
    """Return a tenant of each shard, and each shard's address."""
    found: dict[int, str] = {}
    host = url.rpartition(":")[0]
    async with AsyncClient(url, token=TOKEN) as client:
        for number in count():
            if len(found) == shards:
                break
            tenant = client.tenant(f"bench-{number}")
            found.setdefault((await tenant.configure()).id >> 26, f"bench-{number}")
        told = [one.address for one in (await client.topology()).shards]
    return [found[number] for number in range(shards)], [f"{host}{one}" if one else url for one in told]


def _load(
    table: Table, script: Path, shards: int, how: str, tenants: list[str], targets: list[str], seconds: int
) -> None:
    """Run a load for each shard at the same time, and add up their rates."""
    command = ["wrk", "-t1", f"-c{_CONNECTIONS // shards}", f"-d{seconds}s", "--latency", "-s", str(script)]
    running = [
        subprocess.Popen(
            [*command, f"{target}/v1/tenants/{tenant}/queues/bench/messages"], stdout=subprocess.PIPE, text=True
        )
        for tenant, target in zip(tenants, targets, strict=True)
    ]
    said = [one.communicate()[0] for one in running]
    if any("Non-2xx" in one for one in said):
        raise RuntimeError("\n".join(said))
    rates = [float(found[1]) for one in said if (found := re.search(r"Requests/sec:\s+([\d.]+)", one)) is not None]
    times = [dict(re.findall(r"(50|99)%\s+([\d.]+)ms", one)) for one in said]
    worst = {part: max(float(one.get(part, "nan")) for one in times) for part in ("50", "99")}
    table.row(shards, how, f"{sum(rates):,.0f}", f"{worst['50']:.1f}", f"{worst['99']:.1f}")
