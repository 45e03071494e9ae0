"""Run the benchmarks: ``python -m bench [--only NAME] [--quick]``. No other load should run on the machine."""

from __future__ import annotations

import argparse
import asyncio
import tempfile
from pathlib import Path

from bench import (
    admission,
    cluster,
    console,
    cycles,
    fairness,
    gates,
    heavy_requests,
    neighbour,
    pipeline,
    remote_stores,
    request_heads,
    rpc,
    scale,
    scrape,
    secrets,
    shards,
    transport,
)

SECTIONS = {
    "cycles": cycles.run,
    "remote-stores": remote_stores.run,
    "cluster": cluster.run,
    "fairness": fairness.run,
    "scale": scale.run,
    "scrape": scrape.run,
    "console": console.run,
    "gates": gates.run,
    "admission": admission.run,
    "request-heads": request_heads.run,
    "secrets": secrets.run,
    "transport": transport.run,
    "rpc": rpc.run,
    "shards": shards.run,
    "neighbour": neighbour.run,
    "heavy": heavy_requests.run,
    "pipeline": pipeline.run,
}


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="bench", description="Measure what tenantq costs. Compare ratios, not absolute figures."
    )
    parser.add_argument("--only", choices=sorted(SECTIONS), help="run one section")
    parser.add_argument("--quick", action="store_true", help="do a tenth of the work, to check that it runs")
    options = parser.parse_args()
    for name, section in SECTIONS.items():
        if options.only in (None, name):
            print(f"\n== {name} ==")
            with tempfile.TemporaryDirectory(prefix="tenantq-bench-") as directory:
                asyncio.run(section(Path(directory), quick=options.quick))


if __name__ == "__main__":
    main()
