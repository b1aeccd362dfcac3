"""Writes docs/run.schema.json, the JSON Schema of run.json, from its definition: `python docs/run_schema.py`."""  # noqa: INP001 - a script

import json
from pathlib import Path

from workload.contract.record import json_schema

TARGET = Path(__file__).with_name("run.schema.json")

if __name__ == "__main__":
    TARGET.write_text(json.dumps(json_schema(), indent=1) + "\n", encoding="utf-8")
