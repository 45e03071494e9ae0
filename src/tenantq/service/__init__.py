"""What every transport calls: one object that applies the gates and asks the engine. No transport has rules of its own."""

from tenantq.service.call import Call, QueueInfo, TenantInfo
from tenantq.service.control import Control
from tenantq.service.encryption import MessageEncryption
from tenantq.service.gate_settings import GateSettings
from tenantq.service.gatekeeper import Gatekeeper
from tenantq.service.kms_setup import open_sealing
from tenantq.service.service import Service

__all__ = [
    "Call",
    "Control",
    "GateSettings",
    "Gatekeeper",
    "MessageEncryption",
    "QueueInfo",
    "Service",
    "TenantInfo",
    "open_sealing",
]
