"""The service: what every transport asks, as one object. Each call passes the gates, then asks the engine.

It is told in chapters, each a class in a file of its own that goes on from the one before: control.py, credentials.py,
safekeeping.py, moving.py, looking.py, finding.py, polling.py, fleet_polling.py, settling.py, adding.py.
"""

from __future__ import annotations

from tenantq.service.adding import Adding


class Service(Adding):
    """One object for all transports. Whatever a caller can cause is raised as a TenantqError."""
