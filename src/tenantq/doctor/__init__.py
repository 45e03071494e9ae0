"""The doctor: checks a store and reports every inconsistency."""
