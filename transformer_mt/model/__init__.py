"""The Transformer, and models on disk."""
