"""These tests need vLLM, which `make test-vllm` installs; those of `test_plan.py` need it not."""

import importlib.util
from pathlib import Path

if importlib.util.find_spec("vllm") is None:
    collect_ignore = [file.name for file in Path(__file__).parent.glob("test_*.py") if file.name != "test_plan.py"]
else:
    from tests.vllm import serving

    serving.set_environment()
