"""HTTP endpoints: routes, and handlers other than creating a response."""
