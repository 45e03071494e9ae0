"""The PostgreSQL store on real servers: ownership, commits, servers that refuse or crash."""
