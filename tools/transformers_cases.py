"""transformers' own tests of a causal language model, on ours. Run by `tools.transformers_suite`.

`tests.causal_lm_tester` is transformers' module: its checkout stands before this repository in the search path.
"""

import unittest

from selattn.models import SelectiveConfig, SelectiveForCausalLM, SelectiveModel
from tests import causal_lm_tester, test_fsdp_mixin

# transformers runs these on a few chosen types of models only.
test_fsdp_mixin.FSDP_DISTRIBUTED_TEST_MODEL_TYPES = None


class RotaryTester(causal_lm_tester.CausalLMModelTester):
    """What a model is made of for the tests; whatever is named as a setting of the config becomes one."""

    __test__ = False
    config_class = SelectiveConfig
    base_model_class = SelectiveModel
    causal_lm_class = SelectiveForCausalLM
    positions = "rotary"


class LearnedTester(RotaryTester):
    """The paper's positions."""

    positions = "learned"


class RotaryModelTest(causal_lm_tester.CausalLMModelTest, unittest.TestCase):
    """All of them, as they are."""

    model_tester_class = RotaryTester
    _torch_compile_train_cls = SelectiveForCausalLM


class LearnedModelTest(causal_lm_tester.CausalLMModelTest, unittest.TestCase):
    """All but those of rotary positions, which take every config that knows `rope_parameters` for one that has them."""

    model_tester_class = LearnedTester
    _torch_compile_train_cls = SelectiveForCausalLM


for name in dir(LearnedModelTest):
    if name.startswith("test_model_rope"):
        setattr(LearnedModelTest, name, unittest.skip("positions are learned")(lambda self: None))
