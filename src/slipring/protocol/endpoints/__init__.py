"""What HTTP endpoints read and write: the APIs as translations, the smaller bodies, headers of quotas."""
