"""Requests and answers of the endpoints beside `/v1/responses`."""
