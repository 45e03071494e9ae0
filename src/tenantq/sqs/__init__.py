"""Amazon SQS over the HTTP listener: both of its protocols, signed requests, and nothing of tenantq's rules, which the service has."""

from tenantq.sqs.endpoint import SqsEndpoint
from tenantq.sqs.settings import SqsSettings

__all__ = ["SqsEndpoint", "SqsSettings"]
