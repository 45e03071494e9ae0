"""The service between the transports and the engine: facets that admit calls and use the shard. All rules of the transports are here."""
