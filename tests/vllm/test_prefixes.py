"""Shared prefixes: read once, with the same texts; and requests that are interrupted."""

from selattn.vllm.checks import border
from tests.vllm.serving import check, engine, random_prompts, saved_decoder, written


def found_tokens(llm):
    """Tokens of prompts that vLLM found already read, and all that it looked for."""
    metrics = {each.name: each.value for each in llm.get_metrics() if hasattr(each, "value")}
    return metrics["vllm:prefix_cache_hits"], metrics["vllm:prefix_cache_queries"]


def test_a_shared_beginning_is_read_once(tmp_path):
    model = saved_decoder(tmp_path)
    system, *others = random_prompts([64, 3, 5, 9, 17, 20])
    prompts = [system + other for other in others]
    options = {"enable_prefix_caching": True, "disable_log_stats": False}
    with engine(tmp_path, max_model_len=96, **options) as llm:
        written(llm, prompts[:1], 1)
        check(model, llm, prompts, count=8)
        hits, asked = found_tokens(llm)
        assert hits >= len(prompts) * 64 * 0.9
        assert hits < asked


def test_prefixes_are_off_by_default(tmp_path):
    saved_decoder(tmp_path)
    with engine(tmp_path, max_model_len=96) as llm:
        assert not llm.llm_engine.vllm_config.cache_config.enable_prefix_caching


def test_borders_cost_no_more_than_the_tokens_between_them():
    assert border([6, 9]) == 32
    assert border([100, 200]) == 160
    assert border([4096] * 3) == 4096


def test_preempted_requests_are_replayed(tmp_path):
    """vLLM never has to preempt here, since no request asks for a second block: it is made to."""
    model = saved_decoder(tmp_path)
    prompts = random_prompts([3, 12, 30])
    with engine(tmp_path, max_model_len=90) as llm:
        scheduler = llm.llm_engine.engine_core.engine_core.scheduler
        plain, steps = scheduler.schedule, iter(range(10**6))

        def schedule(*args, **kwargs):
            if next(steps) in (4, 7) and scheduler.running:
                scheduler._preempt_request(scheduler.running.pop(), 0.0)
            return plain(*args, **kwargs)

        scheduler.schedule = schedule
        check(model, llm, prompts)
