"""Beam search, and the translator that puts text through it."""
