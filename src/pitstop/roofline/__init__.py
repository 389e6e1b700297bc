"""Arithmetic only: what hardware can hold and how fast it can read at best. Imports no torch."""
