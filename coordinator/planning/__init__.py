"""Plans what a lane's next rounds draft and verify, from its finished rounds."""
