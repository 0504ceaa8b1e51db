"""Models by their names on a model hub: their files, fetching them, and what fits the memory."""
