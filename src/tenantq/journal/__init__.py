"""The journal: a hash-chained record of every operation, its export and its verification."""
