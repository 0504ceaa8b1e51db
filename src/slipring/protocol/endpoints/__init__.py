"""Request and reply types of the endpoints beside `/v1/responses`."""
