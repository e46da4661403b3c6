"""Run the sanitizers: ``python -m tests.sanitize``."""

from tests.sanitize.full import main

main()
