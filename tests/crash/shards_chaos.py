"""Kill the shards and the supervisor of a server repeatedly under load, then compare what is stored with what was confirmed.

Meanwhile tenants move between the shards and are spread over several.

``python -m tests.crash.shards_chaos --kills 20 --shards 3``. Producers add with idempotency keys and retry until they get a reply; consumers
lease and ack. At the end every confirmed message must have been delivered, none after its ack was confirmed, none under two IDs, and
the doctor and the verification of the audit trail must find nothing.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import signal
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import httpx

from tests.acceptance.command import ADMIN_TOKEN, call
from tests.contract.shards.sharded import Sharded, sharded, until
from tests.processes import alive, descendants

PAUSE_S = 4.0  # between kills: a shard that dies more than five times in a minute is not restarted
EVERY_SUPERVISOR = 7  # one in this many kills is the supervisor's
MOVE_S = 1.0  # between changes of the placement of tenants


class Load:
    """Producers and consumers of one tenant, and the replies they got."""

    def __init__(self, tenant: str) -> None:
        self.tenant = tenant
        self.url = ""  # the server's current address
        self.added: dict[str, str] = {}  # body: id, confirmed
        self.acked: set[str] = set()  # bodies whose ack was confirmed
        self.uncertain: set[str] = set()  # ... or may have been executed
        self.wrongs: list[str] = []
        self.figures: Counter[str] = Counter()
        self.producing = self.consuming = True

    async def ask(self, client: httpx.AsyncClient, what: str, body: dict[str, Any]) -> Any:
        """Return the reply, or None if there was none."""
        try:
            reply = await client.post(f"{self.url}/v1/tenants/{self.tenant}/queues/work/{what}", json=body)
        except httpx.TransportError:
            self.figures["connections lost"] += 1
            return None
        self.figures[f"{what} {reply.status_code}"] += 1
        if reply.status_code not in {200, 503}:
            self.wrongs.append(f"{what}: {reply.status_code} {reply.text[:200]}")
        return reply.json() if reply.status_code == 200 else None

    async def produce(self, client: httpx.AsyncClient, who: int) -> None:
        """Add messages one by one, each until it is confirmed."""
        number = 0
        while self.producing:
            number += 1
            body = f"{self.tenant} {who} {number}"
            while body not in self.added:
                told = await self.ask(client, "messages", {"messages": [{"body": body, "key": body}]})
                if told is not None:
                    self.added[body] = told["messages"][0]["id"]
                else:
                    await asyncio.sleep(0.05)

    async def consume(self, client: httpx.AsyncClient) -> None:
        """Lease and ack."""
        while self.consuming:
            got = await self.ask(client, "poll", {"max": 5, "wait_ms": 200, "lease_ms": 3_000})
            if got is None:
                await asyncio.sleep(0.05)
                continue
            for one in got["messages"]:
                await self._finish(client, one)

    async def _finish(self, client: httpx.AsyncClient, one: dict[str, Any]) -> None:
        body = one["body"]
        if body in self.acked:
            self.wrongs.append(f"resurrected: {body}")
        if self.added.get(body, one["id"]) != one["id"]:
            self.wrongs.append(f"doubled: {body}")
        self.figures["delivered"] += 1
        told = await self.ask(client, "ack", {"receipts": [one["receipt"]]})
        if told is None:
            self.uncertain.add(body)
        elif told["results"][0]["ok"]:
            self.acked.add(body)

    def judge(self) -> None:
        """Return what is missing at the end, when the queue is empty."""
        for body in self.added.keys() - self.acked - self.uncertain:
            self.wrongs.append(f"lost: {body}")


async def _place(client: httpx.AsyncClient, loads: list[Load], shards: int, chance: random.Random) -> None:
    """Move tenants and change their spread, again and again."""
    while True:
        await asyncio.sleep(MOVE_S * chance.random())
        load = chance.choice(loads)
        spread = {"spread": chance.randint(1, shards)}
        wanted = spread if chance.random() < 0.5 else {"shard": chance.randrange(shards)}
        what = "spread" if "spread" in wanted else "pin"
        try:
            reply = await client.put(f"{load.url}/v1/cluster/tenants/{load.tenant}", json=wanted)
        except httpx.TransportError:
            continue
        load.figures[f"{what} {reply.status_code}"] += 1
        if reply.status_code not in {200, 409, 503}:
            load.wrongs.append(f"{what}: {reply.status_code} {reply.text[:200]}")


async def _kill(server: Sharded, loads: list[Load], kills: int, shards: int, chance: random.Random) -> int:
    """Kill shards in turn; return how many were killed before the supervisor's turn or the end."""
    first = chance.randrange(shards)
    for kill in range(kills):
        await asyncio.sleep(PAUSE_S * chance.uniform(0.7, 1.3))
        if (kill + 1) % EVERY_SUPERVISOR == 0:
            return kill
        await asyncio.to_thread(until, lambda shard=(first + kill) % shards: _try_kill(server, shard))
    return kills


def _try_kill(server: Sharded, shard: int) -> bool:
    try:
        server.kill(shard)
    except AssertionError:
        return False  # it is being restarted
    return True


async def chaos(directory: Path, kills: int, shards: int, seed: int) -> list[str]:
    """Run the load and the kills; return all violations."""
    chance = random.Random(seed)
    data, done = directory / "data", 0
    loads: list[Load] = []
    working: list[asyncio.Task[None]] = []
    limits = httpx.Limits(max_connections=500)
    async with httpx.AsyncClient(
        headers={"Authorization": f"Bearer {ADMIN_TOKEN}"}, limits=limits, timeout=20
    ) as client:
        while done < kills:
            with sharded(data, "--shards", shards) as server:
                if not loads:
                    loads = [Load(server.tenant_on(number % shards)) for number in range(2 * shards)]
                    for load in loads:
                        server.ask("PUT", f"/v1/tenants/{load.tenant}/queues/work", json={})
                for load in loads:
                    load.url = server.url
                if not working:
                    working = [asyncio.create_task(load.produce(client, who)) for load in loads for who in range(2)]
                    working += [asyncio.create_task(load.consume(client)) for load in loads]
                    placing = asyncio.create_task(_place(client, loads, shards, chance))
                done += await _kill(server, loads, kills - done, shards, chance) + 1
                running = descendants(server.served.process.pid)
                server.served.process.kill()
                await asyncio.to_thread(until, lambda pids=running: not alive(pids), 60)
        placing.cancel()
        with sharded(data) as server:
            for load in loads:
                load.url, load.producing = server.url, False
            for load in loads:
                path = f"/v1/tenants/{load.tenant}/queues/work"
                await asyncio.to_thread(until, lambda path=path: _is_empty(server.get(path)), 120)
                load.consuming = False
            await asyncio.gather(*working)
            server.served.process.send_signal(signal.SIGTERM)
            server.served.process.wait(60)
    for load in loads:
        load.judge()
    wrongs = [wrong for load in loads for wrong in load.wrongs]
    for command in (("doctor",), ("audit", "verify")):
        found = call(*command, "--data-dir", data)
        if found.code:
            wrongs.append(f"{' '.join(command)}: {found.out}{found.err}")
    total = sum((load.figures for load in loads), Counter())
    print(f"{done} kills of {shards} shards (seed {seed}): {sum(len(load.added) for load in loads)} adds and "
          f"{sum(len(load.acked) for load in loads)} acks confirmed, {dict(total)}")  # fmt: skip
    return wrongs


def _is_empty(queue: dict[str, Any]) -> bool:
    return not (queue["ready"] or queue["in_flight"] or queue["delayed"])


def main() -> int:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--shards", type=int, default=3)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="tenantq-chaos-") as directory:
        wrongs = asyncio.run(chaos(Path(directory), options.kills, options.shards, options.seed))
    for wrong in wrongs[:50]:
        print(wrong)
    print("nothing was lost, doubled or brought back" if not wrongs else f"{len(wrongs)} things are wrong")
    return 1 if wrongs else 0


if __name__ == "__main__":
    sys.exit(main())
