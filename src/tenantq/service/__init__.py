"""The service between the transports and the engine: facets that admit calls and use the shard. All rules of the transports are here."""

from tenantq.service.admission import Admission
from tenantq.service.call import Call, QueueInfo, TenantInfo
from tenantq.service.encryption import MessageEncryption
from tenantq.service.encryption_setup import open_encryption
from tenantq.service.gate_settings import GateSettings
from tenantq.service.service import Service

__all__ = [
    "Admission",
    "Call",
    "GateSettings",
    "MessageEncryption",
    "QueueInfo",
    "Service",
    "TenantInfo",
    "open_encryption",
]
