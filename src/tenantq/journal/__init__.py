"""The journal: what was done, to what, by whom, with what outcome, chained by hashes."""
