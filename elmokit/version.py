"""The version of the package: ``importlib.metadata`` knows it too, but takes 11 ms."""

__version__ = "0.4.0"
ON_PACKAGE_INDEX = False
"""Whether ``pip install elmokit`` finds the package. Until then, commands that install it are run in a copy of the
repository. ``python docs/make_install_lines.py --write`` brings all documents in line with this.
"""
