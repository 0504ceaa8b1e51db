"""Access control: API keys, permitted models, quotas, encryption keys."""
