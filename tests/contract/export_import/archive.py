"""Helpers for exports: create, parse and import them."""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
from typing import TYPE_CHECKING, Any

import msgspec

from tenantq.wire.exports import ExportedMessage, ExportedResult

if TYPE_CHECKING:
    from tenantq.engine.ops.import_part import ImportedPart
    from tenantq.service.call import Call
    from tenantq.service.tenant_export import TenantExport
    from tests.contract.gates.harness import ServiceHarness


async def written(exporting: TenantExport) -> dict[str, bytes]:
    """Return the files of an export by name, checked against its manifest."""
    try:
        data = b"".join([part async for part in exporting])
    finally:
        exporting.close()
    return files_of(data)


def files_of(data: bytes) -> dict[str, bytes]:
    """Return the files of an archive by name, checked against its manifest."""
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        files = {member.name: tar.extractfile(member).read() for member in tar.getmembers()}  # type: ignore[union-attr]  # all are files
    manifest = json.loads(files["manifest.json"])
    assert sorted([*(file["name"] for file in manifest["files"]), "manifest.json"]) == sorted(files)
    counts: dict[str, int] = {}
    for file in manifest["files"]:
        content = files[file["name"]]
        assert (len(content), hashlib.sha256(content).hexdigest()) == (file["size"], file["sha256"])
        assert len(content.splitlines()) == file["lines"]
        counts[file["kind"]] = counts.get(file["kind"], 0) + file["lines"]
    assert {kind: count for kind, count in manifest["counts"].items() if kind != "unreadable"} == counts
    return files


def lines(files: dict[str, bytes], kind: str) -> list[dict[str, Any]]:
    """Return all lines of one kind."""
    manifest = json.loads(files["manifest.json"])
    return [
        json.loads(line)
        for file in manifest["files"]
        if file["kind"] == kind
        for line in files[file["name"]].splitlines()
    ]


async def import_export(
    harness: ServiceHarness, call: Call, files: dict[str, bytes], tenant: str
) -> list[ImportedPart]:
    """Import an export's queues, messages and results."""
    manifest = json.loads(files["manifest.json"])
    for queue in lines(files, "queues"):
        await harness.service.queues.put(call, tenant, queue["name"], queue["config"])
    taken = []
    for file in manifest["files"]:
        if file["kind"] in {"messages", "results"}:
            kind: Any = ExportedMessage if file["kind"] == "messages" else ExportedResult
            rows = [msgspec.json.decode(line, type=kind) for line in files[file["name"]].splitlines()]
            taken.append(
                await harness.service.exports.import_part(
                    call,
                    tenant,
                    file["queue"],
                    export=manifest["export"],
                    part=file["part"],
                    messages=rows if file["kind"] == "messages" else [],
                    results=rows if file["kind"] == "results" else [],
                )
            )
    return taken
