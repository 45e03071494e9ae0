"""Reports: what the lake says of one tenant, and of the platform, as pages for people."""
