"""Self-checks that the server runs periodically: isolation, keys, quotas, the audit trail."""

from tenantq.service.self_checks.audit_integrity import AuditIntegrity
from tenantq.service.self_checks.check import CheckResult, CheckSettings, SelfCheck
from tenantq.service.self_checks.isolation_probe import IsolationProbe
from tenantq.service.self_checks.key_health import KeyHealthCheck
from tenantq.service.self_checks.quota_accuracy import QuotaAccuracy
from tenantq.service.self_checks.runner import SelfChecks

__all__ = [
    "AuditIntegrity",
    "CheckResult",
    "CheckSettings",
    "IsolationProbe",
    "KeyHealthCheck",
    "QuotaAccuracy",
    "SelfCheck",
    "SelfChecks",
]
