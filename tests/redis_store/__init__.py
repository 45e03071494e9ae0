"""The Redis store on real servers: ownership, failures, clusters, and the same rows as the embedded store."""
