"""Measurements; see bench/README.md."""
