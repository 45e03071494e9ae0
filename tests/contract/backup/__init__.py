"""Backups are made while a server works, and become servers again."""
