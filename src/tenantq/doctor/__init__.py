"""The doctor: recounts a store while no server runs, and tells of everything that does not add up."""

from tenantq.doctor.examine import examine, examine_shards, open_embedded
from tenantq.doctor.report import Figures, Finding, Kind, Report

__all__ = ["Figures", "Finding", "Kind", "Report", "examine", "examine_shards", "open_embedded"]
