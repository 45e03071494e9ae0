"""What holds for all remote stores: the same rows as the embedded store, and the rows of a cluster."""
