"""Answers of a given form: grammars, what they allow next, and JSON schemas."""
