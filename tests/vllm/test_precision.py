"""The logits of prompts: in fp32 those of the pruned full forward, in bf16 as near to them as bf16 gets."""

import pytest
import torch

from selattn import SelectiveForCausalLM
from tests.vllm.serving import engine, random_prompts, saved_decoder

PROMPTS = random_prompts([5, 20, 60, 80])


def by_vllm(folder, dtype, **options):
    """The log-probability of each token of each prompt but the first."""
    from vllm import SamplingParams

    params = SamplingParams(max_tokens=1, prompt_logprobs=0, detokenize=False)
    with engine(folder, dtype=dtype, max_model_len=90, **options) as llm:
        found = llm.generate([{"prompt_token_ids": x} for x in PROMPTS], params, use_tqdm=False)
    return [
        torch.tensor([row[token].logprob for row, token in zip(each.prompt_logprobs[1:], prompt[1:], strict=True)])
        for each, prompt in zip(found, PROMPTS, strict=True)
    ]


def by_forward(folder, dtype):
    """The same by one full forward of each prompt with its budgets."""
    model = SelectiveForCausalLM.from_pretrained(folder, dtype=dtype).eval()
    found = []
    for prompt in PROMPTS:
        ids = torch.tensor([prompt])
        with torch.no_grad():
            logits = model(ids, use_cache=False).logits[0, :-1].float()
        found.append(logits.log_softmax(-1).gather(1, ids[0, 1:, None])[:, 0])
    return found


@pytest.mark.parametrize("piece", [16, 2048])
def test_prompts_in_fp32(tmp_path, piece):
    saved_decoder(tmp_path)
    found = by_vllm(tmp_path, "float32", max_num_batched_tokens=piece)
    for one, other in zip(found, by_forward(tmp_path, torch.float32), strict=True):
        torch.testing.assert_close(one, other, atol=2e-4, rtol=0)


def test_prompts_in_bf16(tmp_path):
    """Mean error in the log-probabilities against fp32: rounding decides some evictions, so a mean is compared."""
    model = saved_decoder(tmp_path)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 2:
                parameter.div_(4.0)
    model.save_pretrained(tmp_path)
    truth = torch.cat(by_forward(tmp_path, torch.float32))
    ours = (torch.cat(by_vllm(tmp_path, "bfloat16")) - truth).abs().mean()
    plain = (torch.cat(by_forward(tmp_path, torch.bfloat16)) - truth).abs().mean()
    assert ours < 2 * plain + 1e-3
