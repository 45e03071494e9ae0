"""Several shards behind one address: where their data lies, which of them has which tenant, and how they talk to each other."""
