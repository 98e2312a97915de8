"""The layer: its memory is vLLM's own, a step is one call, and nothing of vLLM's attention is left."""

from unittest import mock

from vllm.v1.kv_cache_interface import UniformTypeKVCacheSpecs

from selattn import make_selective
from selattn.vllm import layer as module
from selattn.vllm.backend import SelectiveSpec
from selattn.vllm.layer import SelectiveAttention
from tests.models.stock.families import tiny
from tests.vllm.serving import BUDGETS, engine, random_prompts, saved_decoder, written


def runner_of(llm):
    """vLLM's model runner."""
    return llm.llm_engine.model_executor.driver_worker.worker.model_runner


def test_only_our_states_remain(tmp_path):
    make_selective(tiny("llama"), cache_budgets=BUDGETS).save_pretrained(tmp_path)
    with engine(tmp_path, max_model_len=90) as llm:
        runner = runner_of(llm)
        layers = runner.vllm_config.compilation_config.static_forward_context
        assert len(layers) == 2
        assert all(isinstance(each, SelectiveAttention) for each in layers.values())
        (group,) = runner.kv_cache_config.kv_cache_groups
        assert isinstance(group.kv_cache_spec, UniformTypeKVCacheSpecs)
        specs = group.kv_cache_spec.kv_cache_specs.values()
        assert all(type(spec) is SelectiveSpec for spec in specs)
        sizes = [spec.page_size_bytes for spec in specs]
        assert sizes == [each.plan.nbytes(each.dtype) for each in layers.values()]
        assert sizes[0] < sizes[1]  # no layer is padded to the largest


def test_states_lie_in_vllms_memory(tmp_path):
    saved_decoder(tmp_path)
    with engine(tmp_path, max_model_len=90) as llm:
        layers = runner_of(llm).vllm_config.compilation_config.static_forward_context
        for each in layers.values():
            pages, pool = each.kv_cache[0], each.slots.pool
            begin, end = pages.data_ptr(), pages.data_ptr() + pages.untyped_storage().nbytes()
            stored = (pool.keys, pool.values, pool.f, pool.position)
            assert all(begin <= x.data_ptr() < end for x in stored)
            written(llm, random_prompts([5, 20]), 3)
            assert all(x is y for x, y in zip(stored, (pool.keys, pool.values, pool.f, pool.position), strict=True))


def test_a_step_is_one_call_for_each_layer(tmp_path):
    saved_decoder(tmp_path)
    with engine(tmp_path, max_model_len=90) as llm:
        with mock.patch.object(module.dispatch, "step", wraps=module.dispatch.step) as step:
            written(llm, random_prompts([5] * 8), 10)
        batches = [len(call.args[0].rows) for call in step.call_args_list]
        assert batches == [8] * (9 * 2)  # two layers; the first token comes with the prompt


def test_prompts_of_like_length_are_read_together(tmp_path):
    saved_decoder(tmp_path)
    with engine(tmp_path, max_model_len=90) as llm:
        with mock.patch.object(module, "attend", wraps=module.attend) as attend:
            written(llm, random_prompts([20, 21, 30, 4]), 1)
        batches = [call.args[1].query.shape[0] for call in attend.call_args_list]
        assert batches == [3, 1] * 2
