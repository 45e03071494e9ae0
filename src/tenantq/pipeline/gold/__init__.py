"""Gold: usage, invoices, service levels, anomalies, growth and compliance evidence."""
