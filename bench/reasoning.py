"""How fast two reasoners write together; the same as rsd-planner bench reasoning.

Run by hand: python bench/reasoning.py [--quick]
"""

from __future__ import annotations

import sys

from rsd_planner.cli import main

if __name__ == "__main__":
    sys.argv[1:1] = ["bench", "reasoning"]
    main()
