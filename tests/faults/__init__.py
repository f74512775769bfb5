"""Faults injected at each step of a batch's life, and storms of them."""
