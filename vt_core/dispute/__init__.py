"""Disputes: two parties with different leaves, a game that finds the one operation they differ in, and its judge."""
