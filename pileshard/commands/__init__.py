"""The commands of the command line, one a module.

Each module has `add`, which adds the command and its options to the parser, and `run`, which runs it.
"""
