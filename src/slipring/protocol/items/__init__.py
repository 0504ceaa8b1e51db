"""Items of a context: their forms, digests and lists, and the pictures and documents in them."""
