"""Tools that the server runs inside a response: which there are, their calls, and approvals."""
