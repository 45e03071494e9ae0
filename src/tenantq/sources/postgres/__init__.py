"""Job tables in PostgreSQL. A query per system says which of its rows are messages."""
