"""The embedded store: RocksDB, its keys, its rows and the file that knows what was synced."""
