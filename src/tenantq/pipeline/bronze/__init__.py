"""Bronze: verified segments, the journal rows they hold, and what was quarantined."""
