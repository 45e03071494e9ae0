"""``tenantq migrate`` between two real servers: nothing is lost or duplicated, wherever it is interrupted."""

from __future__ import annotations

import signal
import subprocess
from typing import TYPE_CHECKING, Any

import pytest

from tenantq import Client, Forbidden, NewMessage, NotFound
from tenantq.errors import QuotaExceeded, Unavailable
from tenantq.migration import Endpoint, Migration
from tenantq.migration.move import LeasesLeft, NotSame
from tenantq.migration.queue_transfer import TarReader
from tenantq.migration.source import resume_source
from tenantq.migration.target import empty_target
from tenantq.runtime.clock import SystemClock
from tests.acceptance.command import ADMIN_TOKEN, COMMAND, serving

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tenantq.client import Queue, Tenant
    from tests.acceptance.command import Done, Served


class Pair:
    """Two servers, and clients for their administrators."""

    def __init__(self, source: Served, target: Served) -> None:
        self.source, self.target = source, target
        self.here, self.there = (Client(one.url, ADMIN_TOKEN, retries=1) for one in (source, target))

    def close(self) -> None:
        """Close the connections."""
        self.here.close()
        self.there.close()

    def arguments(self, *arguments: object) -> tuple[object, ...]:
        """Return the command that migrates to the target."""
        return ("migrate", *arguments, "--to-url", self.target.url, "--to-token", ADMIN_TOKEN)

    def migrate(self, *arguments: object) -> Done:
        """Call the command."""
        return self.source.call(*self.arguments(*arguments))

    def moving(self, tenant: str, hook: Callable[[str], None] = lambda _: None, **options: Any) -> Migration:
        """Return a migration in this process, with a hook for its progress messages."""
        return Migration(
            Endpoint("source", self.here, tenant), Endpoint("target", self.there, tenant), clock=SystemClock(),
            pause=lambda _: None, on_stage=lambda stage: hook(f"stage {stage}"), on_step=hook,
            on_copy=lambda queue, messages, _: hook(f"copied {queue} {messages}"), **options,
        )  # fmt: skip

    def move(self, tenant: str, hook: Callable[[str], None] = lambda _: None, **options: Any) -> None:
        """Migrate a tenant in this process."""
        move = self.moving(tenant, hook, **options)
        move.run(move.plan(), settle_ms=0, end_leases=True)


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    """Return a server in eu and one in us. Tests use different tenant names."""
    home = tmp_path_factory.mktemp("pair")
    with (
        serving(home / "eu", TENANTQ_SHARD__REGION="eu") as eu,
        serving(home / "us", TENANTQ_SHARD__REGION="us") as us,
    ):
        both = Pair(eu, us)
        yield both
        both.close()


def filled(client: Client, name: str, count: int = 30) -> tuple[Tenant, dict[str, set[str]]]:
    """Create a tenant with messages of every kind; return it and the message IDs of each queue."""
    tenant = client.tenant(name)
    tenant.configure(weight=3)
    mail, line, doomed = (tenant.queue(one) for one in ("mail", "line.fifo", "doomed"))
    doomed.configure(max_attempts=1)
    ids = {
        "mail": {one.id for one in mail.add_many([f"m{n}" for n in range(count)])},
        "line.fifo": {one.id for one in line.add_many([NewMessage(body=b"g%d" % n, group="g") for n in range(3)])},
    }
    ids["mail"].add(mail.add("later", delay_ms=3_600_000).id)
    ids["mail"].add(mail.add("once", key="only once").id)
    ids["doomed-dlq"] = {doomed.add("dies").id}
    doomed.poll()[0].nack(reason="broken")
    ids["doomed"] = set()
    tenant.grant("jwt:worker", role="consumer")
    return tenant, ids


def held_ids(queue: Queue) -> set[str]:
    """Return the IDs of all messages in a queue, and check that each is there once."""
    snapshot, start, found = queue.open_snapshot().snapshot, None, list[str]()
    while True:
        page = queue.read_snapshot(snapshot, start=start, limit=1_000)
        found += [message.id for message in page.messages]
        start = page.cursor
        if start is None:
            queue.close_snapshot(snapshot)
            assert len(set(found)) == len(found)
            return set(found)


def held(tenant: Tenant) -> dict[str, set[str]]:
    """Return the message IDs in each queue of a tenant, whatever their state."""
    return {one.name: held_ids(tenant.queue(one.name)) for one in tenant.queues()}


def drained(queue: Queue) -> list[str]:
    """Consume everything that a queue delivers; return the bodies."""
    bodies = []
    while messages := queue.poll(100):
        bodies += [one.text for one in messages]
        queue.ack_many(messages)
    return bodies


def test_tenant_migrates_completely_and_works_at_the_target(pair: Pair) -> None:
    """Messages, order, dead letters, results, grants, idempotency keys and settings move; API keys are new."""
    tenant, ids = filled(pair.here, "whole", 2_300)
    worked = tenant.queue("worked")
    done_id = worked.add("work").id
    (one,) = worked.poll()
    one.ack(result="fine")
    tenant.queue("still").configure(lease_ms=7_000)
    tenant.queue("still").pause()
    old = tenant.create_key("app", role="producer").token
    planned = pair.migrate("whole", "--dry-run", "--json").json["plan"]
    assert planned["obstacles"] == []
    assert (planned["messages"], planned["grants"], planned["keys"]) == (2_306, 1, ["app"])
    assert pair.there.tenant("whole").name not in {one.name for one in pair.there.tenants()}
    tenant.queue("mail").add("still taken")
    moved = pair.migrate("whole", "--new-keys", "--json").json
    assert (moved["moved"], moved["messages"], moved["grants"]) == (True, 2_307, 1)
    there = pair.there.tenant("whole")
    assert there.get().config["weight"] == 3
    assert there.get().status == "active"
    found = held(there)
    assert {name: found[name] for name in ids} == {**ids, "mail": found["mail"]}
    assert (ids["mail"] < found["mail"], len(found["mail"])) == (True, len(ids["mail"]) + 1)
    with Client(pair.target.url, moved["keys"][0]["token"]) as app:
        again = app.queue("mail").add("once", key="only once")
        assert (again.duplicate, again.id in ids["mail"]) == (True, True)
    assert drained(there.queue("mail"))[:2_300] == [f"m{n}" for n in range(2_300)]
    assert drained(there.queue("line.fifo")) == ["g0", "g1", "g2"]
    assert there.queue("worked").result(done_id).text == "fine"
    states = {one.name: (one.status, one.config["lease_ms"]) for one in there.queues()}
    assert states["still"] == ("paused", 7_000)
    assert [one.principal for one in there.grants()] == ["jwt:worker"]
    there.queue("doomed").redrive()
    assert [one.text for one in there.queue("doomed").poll(wait_ms=5_000)] == ["dies"]
    with Client(pair.source.url, old) as app, pytest.raises(Forbidden):
        app.queue("mail").add("too late")
    facts = tenant.get()
    assert facts.suspension is not None
    assert facts.suspension.reason.startswith("moved to ")
    assert pair.target.url in facts.suspension.reason
    assert pair.migrate("whole", "--json").json["plan"]["state"] == "cut over"
    assert drained(there.queue("mail")) == []
    assert pair.migrate("whole", "--abort").code == 7


def test_killed_migration_can_be_resumed_from_any_step(pair: Pair) -> None:
    """Until the end the target serves nobody; then each message is there once."""

    class Killed(Exception):
        """Stands for a kill in the code that it interrupts."""

    told: list[str] = []
    filled(pair.here, "counted", 5)
    pair.move("counted", told.append)
    assert {"stage fence", "freeze the source", "copied mail 11", "stage verify", "open the target"} <= set(told)
    for at in range(1, len(told)):
        name = f"killed-{at}"
        tenant, ids = filled(pair.here, name, 5)
        left = at

        def hook(_: str) -> None:
            nonlocal left
            left -= 1
            if not left:
                raise Killed

        with pytest.raises(Killed):
            pair.move(name, hook)
        if "open the target" not in told[: at - 1]:
            with pytest.raises((NotFound, Forbidden)):
                pair.there.tenant(name).queue("mail").poll()
        done = pair.migrate(name, "--settle", "0s")
        assert done.code == 0, (told[at - 1], done)
        assert held(pair.there.tenant(name)) == ids, told[at - 1]
        with pytest.raises(Forbidden):
            tenant.queue("mail").poll()


def test_killed_migration_can_be_aborted_before_cutover(pair: Pair) -> None:
    """The source has what it had and works; the target keeps nothing."""

    class Killed(Exception):
        """What a kill is for the code that it hits."""

    for number, place in enumerate(
        ("close the source", "freeze the source", "copied mail 11", "mark the source as moved")
    ):
        name = f"undone-{number}"
        tenant, ids = filled(pair.here, name, 5)

        def hook(text: str, place: str = place) -> None:
            if text == place:
                raise Killed

        with pytest.raises(Killed):
            pair.move(name, hook)
        done = pair.migrate(name, "--abort")
        assert done.code == 0, done
        assert held(tenant) == ids
        assert tenant.queue("mail").poll()[0].text == "m0"
        assert name not in {one.name for one in pair.there.tenants()}
        again = pair.migrate(name, "--abort", "--json").json
        assert (again["lifted"], again["deleted"]) == ([], [])


def test_killed_migrate_process_is_resumed_by_the_next(pair: Pair) -> None:
    """The real command is killed while it copies."""
    _, ids = filled(pair.here, "process", 3_000)
    process = subprocess.Popen(
        [COMMAND, *map(str, pair.arguments("process"))], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env=pair.source.environment(),
    )  # fmt: skip
    assert process.stderr is not None
    for line in process.stderr:
        if line == "stage: copy\n":
            process.kill()
    process.communicate()
    assert process.returncode == -signal.SIGKILL
    assert pair.migrate("process").code == 0
    assert held_ids(pair.there.tenant("process").queue("mail")) == ids["mail"]


def test_ctrl_c_shows_both_sides_and_how_to_resume_or_abort(pair: Pair) -> None:
    """Interrupted while waiting for leases; after --abort the source works, and the lease is still valid."""
    tenant = pair.here.tenant("stopped")
    tenant.configure()
    tenant.queue("mail").add("work")
    (message,) = tenant.queue("mail").poll(lease_ms=600_000)
    process = subprocess.Popen(
        [COMMAND, *map(str, pair.arguments("stopped", "--settle", "5m"))], stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, text=True, env=pair.source.environment(),
    )  # fmt: skip
    assert process.stderr is not None
    for line in process.stderr:
        if line == "stage: fence\n":
            break
    while tenant.get().status == "active":
        assert process.poll() is None
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "interrupted at: fence" in said
    assert f"source {pair.source.url}: tenant stopped is suspended: moving to " in said
    assert f"target {pair.target.url}: has no tenant stopped" in said
    assert "--abort" in said
    assert ADMIN_TOKEN not in said
    assert pair.migrate("stopped", "--abort").code == 0
    message.ack()
    assert tenant.queue("mail").add("on it goes")


def test_migration_waits_for_leases_or_ends_them_on_request(pair: Pair) -> None:
    """Later settlements are refused at the source; the messages return at the target without counting the attempt."""
    tenant = pair.here.tenant("leased")
    tenant.configure()
    queue = tenant.queue("mail")
    queue.add_many(["a", "b"])
    first, second = queue.poll(2, lease_ms=600_000)
    left = pair.migrate("leased", "--settle", "0s")
    assert (left.code, "2 messages are still leased" in left.err) == (7, True)
    with pytest.raises(Forbidden):
        queue.add("not while it moves")
    first.ack()
    move = pair.moving("leased")
    plan = move.plan()
    with pytest.raises(LeasesLeft):
        move.run(plan, settle_ms=0, end_leases=False)
    assert pair.migrate("leased", "--settle", "0s", "--end-leases").code == 0
    (outcome,) = queue.ack_many([second], errors="return")
    assert outcome is not None
    assert outcome.code == "lease_lost"
    (again,) = pair.there.tenant("leased").queue("mail").poll(2)
    assert (again.text, again.attempt, again.id) == ("b", 1, second.id)


def test_obstacles_are_reported_before_anything_changes(pair: Pair) -> None:
    """Quotas, regions, existing messages, legal holds and suspension are reported with exit code 7."""
    tenant, ids = filled(pair.here, "blocked", 3)
    pair.there.tenant("small").configure(quotas={"backlog": 2})
    pair.there.tenant("taken").configure()
    pair.there.tenant("taken").queue("mail").add("somebody else's")
    pair.here.tenant("only-eu").configure(regions=["eu"])
    for name, options, text in (
        ("blocked", ("--as", "small"), "quota backlog at the target: limit 2"),
        ("blocked", ("--as", "taken"), "queue mail of tenant taken at the target has messages"),
        ("only-eu", (), "the target is in us, but the tenant is restricted to eu"),
    ):
        refused = pair.migrate(name, *options)
        assert (refused.code, f"blocked: {text}" in refused.out) == (7, True), refused
    tenant.hold("Case 4711, counsel's letter")
    refused = pair.migrate("blocked", "--delete-source", "--yes", "--reason", "it is not needed here")
    assert (refused.code, "legal hold" in refused.out) == (7, True)
    tenant.release_hold("Case 4711 was settled")
    assert tenant.get().status == "active"
    assert held(tenant) == ids
    tenant.suspend("has not paid")
    assert "blocked: the tenant is suspended (has not paid)" in pair.migrate("blocked").out
    assert {one.name for one in pair.there.tenants()} & {"blocked", "only-eu"} == set()


def test_wrong_servers_and_tokens_are_refused(pair: Pair) -> None:
    """Covers the same server twice, invalid and weak tokens, unreachable servers, unknown tenants and queues."""
    tenant = pair.here.tenant("honest")
    tenant.configure()
    own = tenant.create_key("t", role="tenant-admin").token
    same = pair.source.call("migrate", "honest", "--to-url", pair.source.url, "--to-token", ADMIN_TOKEN, "--as", "x-2")
    assert (same.code, "are the same server" in same.out) == (7, True)
    wrong = pair.source.call("migrate", "honest", "--to-url", pair.target.url, "--to-token", "tq_no_one")
    assert (wrong.code, f"target {pair.target.url}" in wrong.err) == (4, True)
    weak = pair.source.call(*pair.arguments("honest"), TENANTQ_TOKEN=own)
    assert (weak.code, "source" in weak.out) == (7, True)
    assert "administrator of the platform" in weak.out
    gone = pair.source.call("migrate", "honest", "--to-url", "http://127.0.0.1:1", "--to-token", "x")
    assert (gone.code, "target http://127.0.0.1:1" in gone.err) == (6, True)
    assert pair.migrate("nobody-there").code == 3
    assert pair.source.call("migrate", "honest").code == 2
    assert pair.migrate("honest", "--queue", "none").code == 3
    assert tenant.get().status == "active"


def test_refusal_during_the_copy_leaves_the_source_unchanged(pair: Pair) -> None:
    """A quota is lowered after the plan: nothing is cut over, and with a higher quota the same command resumes."""
    _, ids = filled(pair.here, "crowded", 20)
    pair.there.tenant("crowded").configure()

    def hook(text: str) -> None:
        if text == "stage copy":
            pair.there.tenant("crowded").configure(quotas={"backlog": 2})

    with pytest.raises(QuotaExceeded, match="target http"):
        pair.move("crowded", hook)
    assert pair.here.tenant("crowded").get().status == "suspended"
    pair.there.tenant("crowded").configure(quotas={"backlog": None})
    assert pair.migrate("crowded").code == 0
    assert held(pair.there.tenant("crowded")) == ids


def test_cutover_is_refused_if_the_sides_differ(pair: Pair) -> None:
    """The differences are printed by queue, the source keeps everything, and the migration can be repeated."""
    tenant, ids = filled(pair.here, "differs", 5)

    def hook(text: str) -> None:
        if text == "stage verify":
            pair.there.tenant("differs").queue("mail").remove(next(iter(ids["mail"])))

    with pytest.raises(NotSame, match="mail: messages 7 and 6"):
        pair.move("differs", hook)
    refused = pair.migrate("differs")
    assert (refused.code, "queue mail: messages 7 at the source, 6 at the target" in refused.err) == (7, True)
    assert pair.there.tenant("differs").get().status == "suspended"
    resume_source(Endpoint("source", pair.here, "differs"))  # as if the target was unreachable
    (taken,) = tenant.queue("mail").poll()
    taken.ack()
    pair.move("differs")
    assert held(pair.there.tenant("differs"))["mail"] == ids["mail"] - {taken.id}


def test_encrypted_tenant_is_reencrypted_at_the_target(pair: Pair) -> None:
    """Its messages are readable through the target and encrypted in its store; idempotency keys still deduplicate."""
    tenant = pair.here.tenant("sealed")
    tenant.configure(encryption={"enabled": True})
    tenant.queue("mail").add_many([NewMessage(body=b"secret", key="k"), "another"])
    plain = pair.there.tenant("in-plain")
    plain.configure()
    assert "is not; enable encryption there first" in pair.migrate("sealed", "--as", "in-plain").out
    assert pair.migrate("sealed").code == 0
    queue = pair.there.tenant("sealed").queue("mail")
    assert queue.add("secret", key="k").duplicate
    messages = queue.peek().messages
    assert [(one.text, one.encrypted) for one in messages] == [("secret", True), ("another", True)]


def test_single_queue_migrates_with_its_dead_letters(pair: Pair) -> None:
    """The source queue is closed, the target queue works, and with --delete-source the source queue is deleted."""
    tenant, ids = filled(pair.here, "parts", 8)
    done = pair.migrate(
        "parts", "--queue", "doomed", "--as", "new-parts", "--delete-source", "--yes", "--reason", "it moved away"
    )
    assert done.code == 0, done
    assert "tenant: new-parts" in done.out
    there = pair.there.tenant("new-parts")
    assert held(there) == {"doomed": set(), "doomed-dlq": ids["doomed-dlq"]}
    assert there.queue("doomed").add("works")
    assert tenant.queue("mail").poll()[0].text == "m0"
    assert {one.name for one in tenant.queues()} == {"mail", "line.fifo"}
    assert pair.migrate("parts", "--queue", "mail", "--as", "new-parts", "--end-leases", "--settle", "0s").code == 0
    assert held(there)["mail"] == ids["mail"]
    with pytest.raises(Forbidden):
        tenant.queue("mail").add("it is elsewhere")
    assert tenant.queue("line.fifo").poll()[0].text == "g0"
    assert tenant.queue("third").add("new queues are made as ever")


def test_source_is_deleted_on_request_after_the_migration(pair: Pair) -> None:
    """This needs the name and a reason; without them the migration does not start."""
    _, ids = filled(pair.here, "leaves", 5)
    assert pair.migrate("leaves", "--delete-source").code == 2
    assert pair.here.tenant("leaves").get().status == "active"
    assert pair.migrate("leaves", "--delete-source", "--yes", "--reason", "moved to the other region").code == 0
    assert "leaves" not in {one.name for one in pair.here.tenants()}
    assert held(pair.there.tenant("leaves")) == ids


def test_migration_resumes_after_a_server_was_killed(pair: Pair, tmp_path: Path) -> None:
    """The error names the target or the source, which is killed during the copy and restarted on another port."""
    _, ids = filled(pair.here, "stays", 5)

    def killing(served: Served, place: str) -> Callable[[str], None]:
        def hook(text: str) -> None:
            if text == place:
                served.process.kill()
                served.process.wait()

        return hook

    with serving(tmp_path / "third") as third:
        both = Pair(pair.source, third)
        with pytest.raises(Unavailable, match=f"target {third.url}"):
            both.move("stays", killing(third, "copy queue mail"))
        both.close()
    with serving(tmp_path / "third") as third:
        both = Pair(pair.source, third)
        both.move("stays")
        assert held(both.there.tenant("stays")) == ids
        assert empty_target(Endpoint("source", both.here, "stays"), Endpoint("target", both.there, "stays")) == []
        both.close()
        both = Pair(third, pair.target)
        with pytest.raises(Unavailable, match=f"source {third.url}"):
            both.move("stays", killing(third, "copy queue line.fifo"))
        both.close()
    with serving(tmp_path / "third") as third:
        both = Pair(third, pair.target)
        both.move("stays")
        assert held(both.there.tenant("stays")) == ids
        both.close()


def test_tar_is_parsed_from_chunks_of_any_size() -> None:
    """It can arrive byte by byte or all at once, and the reader knows when it is complete."""
    import io  # noqa: PLC0415  # only here
    import tarfile  # noqa: PLC0415

    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for name, data in (("tenant.json", b"{}"), ("a/messages-000001.jsonl", b"x" * 1_500), ("none", b"")):
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    for step in (1, 511, 1_000_000):
        found: list[tuple[str, int]] = []
        files = TarReader(lambda name, data, found=found: found.append((name, len(data))))  # type: ignore[misc]  # bound early
        for at in range(0, len(raw.getvalue()), step):
            files.feed(raw.getvalue()[at : at + step])
        assert found == [("tenant.json", 2), ("a/messages-000001.jsonl", 1_500), ("none", 0)]
        assert files.ended
