"""Mutation tests: small changes of the code that the tests must notice; see docs/reliability.md."""
