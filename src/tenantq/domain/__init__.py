"""Values of the domain: names, messages, settings and the rules that hold for them alone."""
