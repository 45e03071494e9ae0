"""HTTP/1.1: the transport that speaks JSON. It parses requests and encodes replies; all rules are in the service."""

from tenantq.http.listener import HttpListener
from tenantq.http.settings import HttpSettings
from tenantq.runtime.tls import TlsFiles

__all__ = ["HttpListener", "HttpSettings", "TlsFiles"]
