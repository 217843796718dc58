"""Run the benchmark: `python -m tenure_loadtests`."""

import sys

from tenure_loadtests.command_line import main

sys.exit(main())
