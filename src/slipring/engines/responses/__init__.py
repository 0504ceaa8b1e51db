"""The responses engine: any server of the Responses API."""
