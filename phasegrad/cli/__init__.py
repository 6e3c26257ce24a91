"""The command line: verbs over the same settings as Python."""

from phasegrad.cli.main import main

__all__ = ["main"]
