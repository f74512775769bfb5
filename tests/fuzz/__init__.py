"""Fuzzing: random and damaged input for everything that reads input, with ``make fuzz``."""
