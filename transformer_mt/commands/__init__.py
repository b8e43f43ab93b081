"""What `translate`, `score`, `evaluate` and `average` do, between parsed options and the parts that do the work."""
