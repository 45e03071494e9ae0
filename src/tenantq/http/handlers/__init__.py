"""Handlers of the routes: each converts a request to one call of the service, and its result to a reply."""
