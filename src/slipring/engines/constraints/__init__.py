"""Output constraints: schemas, grammars and stop sequences, enforced by engines or checked beside them."""
