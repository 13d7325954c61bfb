"""Speed and size, each beside a peer or a limit measured in the same run."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1]))  # where the tests' own servers are
