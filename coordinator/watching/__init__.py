"""What rounds and requests report of themselves: explanations, traces and the last endings."""
