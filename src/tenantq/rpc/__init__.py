"""Cap'n Proto: the transport for programs that speak it. It reads requests and writes replies; all rules are in the service.

Everything but the settings needs pycapnp, which the extra ``tenantq[rpc]`` brings.
"""
