"""Mutation tests: small changes of the code that the tests must notice; see docs/internals/reliability.md."""
