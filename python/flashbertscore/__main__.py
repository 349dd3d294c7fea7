"""`python -m flashbertscore` is the command `flashbertscore`."""

import sys

from flashbertscore.cli.main import main

sys.exit(main())
