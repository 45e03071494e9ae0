"""Load generated with the SDK, and its measurement: the engine of ``tenantq bench``."""
