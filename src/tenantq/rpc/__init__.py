"""Cap'n Proto: the transport for programs that speak it. It reads, dispatches and writes; every rule stands behind the service.

Everything but the settings needs pycapnp, which the extra ``tenantq[rpc]`` brings.
"""
