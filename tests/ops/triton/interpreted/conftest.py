"""These tests need TRITON_INTERPRET=1 before triton is imported: tests/ops/triton/test_interpreted.py runs them so."""

import os

from tests.ops.triton.interpreter import quicken

if os.environ.get("TRITON_INTERPRET") == "1":
    quicken()
else:
    collect_ignore_glob = ["*"]
