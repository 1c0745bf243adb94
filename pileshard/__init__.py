"""pileshard: terabytes of text to the tensors of a training step, exactly."""

from pileshard.version import __version__

__all__ = ["__version__"]
