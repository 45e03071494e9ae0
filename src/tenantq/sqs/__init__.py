"""Amazon SQS on the HTTP listener: both protocols and signed requests. All rules are in the service."""

from tenantq.sqs.endpoint import SqsEndpoint
from tenantq.sqs.settings import SqsSettings

__all__ = ["SqsEndpoint", "SqsSettings"]
