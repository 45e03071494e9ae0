"""Moving a tenant, or some of its queues, from one live server to another: plan, fence, copy, verify, cut over.

Everything that a move has to remember stands with the tenant on the two servers, in why it is suspended there; nothing is kept here. So
whoever runs it again, from anywhere, goes on where it was.
"""

from tenantq.migration.move import Migration
from tenantq.migration.sides import Side

__all__ = ["Migration", "Side"]
