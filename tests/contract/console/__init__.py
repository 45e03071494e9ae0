"""The console, key by key, against a real server in this process."""
