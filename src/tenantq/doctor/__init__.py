"""The doctor: checks a store while no server runs, and reports every inconsistency."""

from tenantq.doctor.report import DoctorReport, Finding, Kind, StoreFigures
from tenantq.doctor.store_check import examine, examine_shards, open_embedded

__all__ = ["DoctorReport", "Finding", "Kind", "StoreFigures", "examine", "examine_shards", "open_embedded"]
