"""``python -m trtforge``."""

from trtforge.cli.main import main

main()
