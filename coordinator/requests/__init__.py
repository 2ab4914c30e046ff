"""What is asked: its fields checked, its law, whose it is."""
