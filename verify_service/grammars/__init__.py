"""The forms of answers: compiled apart from the device, matched beside it."""
