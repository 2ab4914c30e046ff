"""What is asked: its fields checked, how it is sampled, whose it is."""
