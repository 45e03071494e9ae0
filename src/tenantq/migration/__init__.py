"""Moving a tenant, or some of its queues, from one live server to another: plan, fence, copy, verify, cut over.

The state of a migration is stored on the two servers, in the reasons of the suspensions. So it can be continued from anywhere.
"""

from tenantq.migration.endpoint import Endpoint
from tenantq.migration.move import Migration

__all__ = ["Endpoint", "Migration"]
