"""Reports about one tenant or the whole platform, as HTML pages."""
