"""Mutation tests: small changes of the code that the tests must notice.

See docs/internals/reliability.md.
"""
