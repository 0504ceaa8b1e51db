"""What nodes on one store share: parked states, ids, maintenance."""
