"""Attention backends: what one is, which one runs, and one file for each implementation."""
