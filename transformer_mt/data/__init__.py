"""Text and token ids: reading, cleaning, segmenting, storing, batching. Never imports torch."""
