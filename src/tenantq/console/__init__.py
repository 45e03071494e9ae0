"""The console: a tenantq server on a terminal. It is a client like any other, and may what its credential may.

What a row shows is decided by plain functions (``overview``, ``queue_lines``, ``security``, …); the screens only draw it. Nothing of the
former needs Textual, which is an extra.
"""
