"""`python -m pileshard` is the command `pileshard`."""

import sys

from pileshard.cli import main

sys.exit(main())
