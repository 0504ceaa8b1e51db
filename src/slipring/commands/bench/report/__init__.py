"""Reports of a record: an HTML page, an SVG figure, and tables in the terminal."""
