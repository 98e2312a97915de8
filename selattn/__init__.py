"""Selective attention (Leviathan, Kalman, Matias; ICLR 2025): tokens that mask tokens no longer needed.

`__init__.pyi` lists the public names. Each is loaded when it is first used, so that `import selattn` and
`selattn --help` do not wait for torch.
"""

from selattn._later import import_after, lazy

__version__ = "0.2.0"
__getattr__, __dir__, __all__ = lazy(__name__, __file__)
__all__ += ["__version__"]

import_after("transformers.models.auto.configuration_auto", "selattn.models")  # which registers the models
import_after("peft.utils.constants", "selattn._peft")
