"""Metrics of several shards as one text in the format of Prometheus."""

from __future__ import annotations


def merge_metrics(texts: dict[str, bytes], shards: list[str]) -> bytes:
    """Return the texts as one: each family once, and each sample with a label of its shard."""
    families: dict[str, list[str]] = {}
    for shard, text in texts.items():
        family: list[str] = []
        for line in text.decode().splitlines():
            if line.startswith("# HELP "):
                family = families.setdefault(line.split(" ", 3)[2], [])
                if not family:
                    family.append(line)
            elif line.startswith("# TYPE "):
                if len(family) == 1:
                    family.append(line)
            elif line:
                family.append(_labelled(line, shard))
    up = ["# HELP tenantq_shard_up Whether a shard runs.", "# TYPE tenantq_shard_up gauge"]
    up += [f'tenantq_shard_up{{shard="{shard}"}} {int(shard in texts)}' for shard in shards]
    return "".join(f"{line}\n" for family in (*families.values(), up) for line in family).encode()


def _labelled(line: str, shard: str) -> str:
    label = f'shard="{shard}"'
    name, brace, rest = line.partition("{")
    if brace:
        return f"{name}{{{label}{'' if rest.startswith('}') else ','}{rest}"
    name, _, value = line.partition(" ")
    return f"{name}{{{label}}} {value}"
