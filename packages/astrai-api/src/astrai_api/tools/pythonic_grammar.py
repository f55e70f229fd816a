"""Grammars of calls in Python's syntax, in Lark's notation.

Values are JSON: that is what schemas describe, and the parser takes it for a literal.
"""
