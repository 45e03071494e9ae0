"""What finance, operators, security officers and customers read."""
