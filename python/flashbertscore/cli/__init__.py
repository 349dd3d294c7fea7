"""The command lines: they alone own the terminal."""
