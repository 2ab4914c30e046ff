"""What a lane's rounds to come shall draft and verify, made of the rounds that are over."""
