"""Output constraints: schemas and grammars for engines, checks of tool grammars, limits on tool calls."""
