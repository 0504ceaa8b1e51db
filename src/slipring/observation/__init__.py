"""What operators see of a running server, as data: its live state and its metrics.

Ids, sizes and times only. Nothing here holds what clients or models wrote.
"""
