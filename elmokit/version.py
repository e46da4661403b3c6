"""The version of the package: ``importlib.metadata`` knows it too, but takes 11 ms."""

__version__ = "0.1.0"
