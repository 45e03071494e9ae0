"""Job tables in PostgreSQL. A query per system selects the rows that are messages."""
