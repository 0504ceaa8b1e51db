"""Nodes on one store: parked states, fetching them from peers, maintenance of the store."""
