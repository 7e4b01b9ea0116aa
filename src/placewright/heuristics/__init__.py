"""Placers that need no learning, one family a file."""
