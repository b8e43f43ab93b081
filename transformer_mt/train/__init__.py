"""Loss, schedule, updates, checkpoints and what happens around them."""
