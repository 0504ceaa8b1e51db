"""The SQL store: responses, conversations, runs, keys on one database."""
