"""Pages that are one file: HTML with its style and its plots inside, readable on a phone and on paper."""
