"""Retention: how long days of a table stay in the lake, and how long in the archive. Read from TOML.

[default]
archive_after_days = 90

[tables.bronze]
archive_after_days = 30               # older days go to cold storage
delete_after_days = 2557              # and are deleted there at this age; default: never
"""

from pathlib import Path
from typing import Final

import msgspec

from tenantq.errors import Invalid
from tenantq.pipeline.tables import TABLES
from tenantq.runtime.toml_files import read_toml

ARCHIVABLE: Final = tuple(table.name for table in TABLES.values() if table.archivable)


class RetentionRule(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The age, in days, at which a day moves on."""

    archive_after_days: int | None = None  # from the lake; None: it stays
    delete_after_days: int | None = None  # from the archive; None: it stays


class Retention(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Rules by table. ``default`` applies to tables without one."""

    default: RetentionRule = RetentionRule()
    tables: dict[str, RetentionRule] = {}

    def of(self, table: str) -> RetentionRule:
        """Return the rule of a table. Values that it does not set come from the default."""
        own = self.tables.get(table, RetentionRule())
        return RetentionRule(
            self.default.archive_after_days if own.archive_after_days is None else own.archive_after_days,
            self.default.delete_after_days if own.delete_after_days is None else own.delete_after_days,
        )


def load_retention(file: Path | None, older_than_days: int | None) -> Retention:
    """Read rules. ``older_than_days`` replaces the default. Raises Invalid."""
    rules = Retention() if file is None else read_toml(file, Retention, "retention rules")
    if older_than_days is not None:
        rules = msgspec.structs.replace(
            rules, default=msgspec.structs.replace(rules.default, archive_after_days=older_than_days)
        )
    return check_retention(rules, f"retention rules {file}" if file is not None else "retention")


def check_retention(rules: Retention, where: str) -> Retention:
    """Return ``rules`` if they are valid, else raise Invalid."""
    for table in rules.tables:
        if table not in ARCHIVABLE:
            raise Invalid(f"{where}: table {table!r} cannot be archived; these can: {', '.join(ARCHIVABLE)}")
    for table in ARCHIVABLE:
        rule = rules.of(table)
        for name, days in (
            ("archive_after_days", rule.archive_after_days),
            ("delete_after_days", rule.delete_after_days),
        ):
            if days is not None and not 0 <= days <= 36_500:
                raise Invalid(f"{where}: {table}: {name} {days} must be 0 to 36500")
        if rule.delete_after_days is not None and (
            rule.archive_after_days is None or rule.delete_after_days <= rule.archive_after_days
        ):
            raise Invalid(
                f"{where}: {table}: delete_after_days must be more than archive_after_days, which must be given"
            )
    return rules
