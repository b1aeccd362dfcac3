"""`python -m workload`: the trainer's door."""

import sys

from workload.cli import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
