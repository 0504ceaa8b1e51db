"""What the server accepts and returns, as an OpenAPI document that is made from its types."""
