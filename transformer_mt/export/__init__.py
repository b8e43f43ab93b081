"""Models in the forms that other programs read."""
