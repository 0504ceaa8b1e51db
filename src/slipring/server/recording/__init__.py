"""Records what clients do, for ``serve --record``: turns that have ended, as files that can be replayed."""
