"""The OpenAPI document of the server, derived from its wire types."""
