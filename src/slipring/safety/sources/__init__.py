"""What checks ask: moderations endpoints, guard models, patterns, Python functions."""
