"""Load on a server, made with the SDK, and what came of it: what ``tenantq bench`` measures with."""
