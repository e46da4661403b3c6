"""``python -m elmokit``."""

from elmokit.cli.main import main

main()
