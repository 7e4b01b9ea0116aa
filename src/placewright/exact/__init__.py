"""Placers that find the optimum and prove it."""
