"""Converts grammars of custom tools to grammars of JSON strings.

A tool's grammar (in Lark's notation, or a regular expression) describes the input itself. Models write the
input as a JSON string, so engines need a grammar of that string. ``lark_parser`` and ``regex_parser`` parse
into nodes of ``syntax_tree``, ``productions`` expands them, and ``llguidance_writer`` and ``gbnf_writer``
write the result.
"""
