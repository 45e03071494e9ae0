"""What serves each route: from wire types to one call of the service, and back."""
