"""Scores that anybody can compare. Never imports torch."""
