"""What a user would run instead, behind one small interface: a prompt in, ids and seconds out."""
