"""The docstrings of a folder of modules."""

from __future__ import annotations

from pathlib import Path

from streamdedup.files.docstrings import docstrings

MODULE = '''"""Of the module."""

if True:
    class Outer:
        """Of the class."""

        def method(self):
            """Of the method."""

            def inner():
                """Of an inner function."""
else:
    async def other():
        """In an else."""

try:
    pass
except ValueError:
    def handler():
        """In a handler."""
finally:
    def last():
        """At the end."""

match 1:
    case 1:
        def chosen():
            """In a case."""

def twice():
    """First."""

def twice():
    """Second."""

def broken():
    """Half a \\ud800 pair."""
'''


def test_each_docstring_has_a_name(tmp_path: Path) -> None:
    """Also in blocks; a second definition of a name has a number."""
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "__init__.py").write_text(MODULE)
    (tmp_path / "package" / "cut.py").write_text("def (")
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "test_it.py").write_text('"""A test."""')
    assert list(docstrings(tmp_path)) == [
        ("package", "Of the module."),
        ("package:Outer", "Of the class."),
        ("package:Outer.method", "Of the method."),
        ("package:Outer.method.inner", "Of an inner function."),
        ("package:other", "In an else."),
        ("package:handler", "In a handler."),
        ("package:last", "At the end."),
        ("package:chosen", "In a case."),
        ("package:twice", "First."),
        ("package:twice#2", "Second."),
    ]
