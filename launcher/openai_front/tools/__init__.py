"""Calls of tools in a model's text: a parser a format, each fed with text as it comes."""
