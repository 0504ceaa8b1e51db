"""Tools of a request: their definitions, their types, and the choice among them."""
