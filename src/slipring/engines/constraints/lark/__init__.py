"""Converts grammars of custom tools to grammars of JSON strings.

A tool's grammar (in Lark's notation, or a regular expression) describes the input itself. Models write the
input as a JSON string, so engines need a grammar of that string. ``lark_parser`` parses into nodes,
``productions`` expands them, and ``writers`` writes the result.
"""
