"""The console: a terminal interface to a tenantq server. It is a client like any other, with the rights of its credential.

Plain functions (``tenant_rows``, ``queue_rows``, ``message_rows``, ``security_rows``) decide what a row shows; screens and panels only
draw it. These functions do not need Textual, which is an extra.
"""
