"""Envelope encryption of tenants' messages, and the data keys for it."""
