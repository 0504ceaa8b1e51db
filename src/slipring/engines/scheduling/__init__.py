"""Which jobs and which loops of agents run next, and which wait for a place, a replica or the KV cache."""
