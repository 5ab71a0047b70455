"""A whole installation on one machine, on loopback: what ``make services`` starts. See docs/operations.md."""
