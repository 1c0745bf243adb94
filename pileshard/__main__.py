"""`python -m pileshard` is the command `pileshard`."""

from pileshard.cli import entry

entry()
