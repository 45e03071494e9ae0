"""The Redis store on real servers: ownership, trouble, clusters, and the same rows as the embedded store."""
