"""HTML pages in one file each, with inline style and charts, for phone, laptop and print."""
