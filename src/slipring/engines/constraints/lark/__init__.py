"""Lark grammars of custom tools, rewritten for the JSON strings that models write their inputs in."""
