"""What is asked: its fields checked, its law, its policy, whose it is."""
