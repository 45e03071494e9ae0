"""JSON objects of the HTTP interface. The server and the clients use the same types.

Requests with unknown fields or wrong types are refused. Times are in milliseconds: durations end in ``_ms``, wall-clock
times in ``_at`` or ``_until``. A body is text in ``body``, or base64 in ``body_base64`` if it is not UTF-8.
"""
