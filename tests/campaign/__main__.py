"""Run the campaign: ``python -m tests.campaign``."""

# The fork server imports the main module again in each child, but not one of this name: children must start fast.
from tests.campaign.full import main

main()
