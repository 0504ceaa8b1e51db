"""Long time limits, for the processes of all tests."""
