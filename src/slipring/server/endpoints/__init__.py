"""HTTP endpoints: the web application and its handlers."""
