"""Access control: API keys, permissions, quotas, encryption keys."""
