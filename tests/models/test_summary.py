import pytest

from selattn.models import SelectiveConfig, SelectiveForCausalLM, summary
from selattn.models.formats import skeleton
from tests.models.tiny import VARIANTS, tiny_config


def parameters_by_part(config):
    return summary.parameters_by_part(skeleton(config))


# The paper's table of parameter counts: vocabulary 8,000, context 512.
PAPER = {
    8: 33_603_584,
    10: 59_699_200,
    12: 97_615_872,
    14: 149_666_048,
    16: 218_226_688,
    18: 305_717_760,
    20: 414_387_200,
    22: 546_641_920,
    24: 704_950_272,
    26: 891_468_032,
    28: 1_108_645_888,
}


@pytest.mark.parametrize(("d", "count"), PAPER.items())
def test_the_papers_table(d, count):
    ours = sum(parameters_by_part(SelectiveConfig.from_d(d)).values())
    assert abs(ours - count) < 0.001 * count


@pytest.mark.parametrize("d", [2, 12])
def test_selective_attention_adds_no_parameter(d):
    standard = parameters_by_part(SelectiveConfig.from_d(d, attention="standard"))
    assert parameters_by_part(SelectiveConfig.from_d(d, attention="selective")) == standard
    assert standard["selection projections"] == 0


@pytest.mark.parametrize("d", [2, 12])
def test_the_separate_form_adds_its_two_projections(d):
    head = parameters_by_part(SelectiveConfig.from_d(d))
    separate = parameters_by_part(SelectiveConfig.from_d(d, selection_source="separate"))
    assert separate == {**head, "selection projections": d * 2 * (64 * d) * 64}
    mixed = SelectiveConfig.from_d(d, selection_source="separate", attention=["selective", "standard"])
    assert parameters_by_part(mixed)["selection projections"] == d // 2 * 2 * (64 * d) * 64


@pytest.mark.parametrize("changes", VARIANTS.values(), ids=VARIANTS)
def test_the_parts_are_the_whole(changes):
    config = tiny_config(**changes)
    counts = parameters_by_part(config)
    assert sum(counts.values()) == SelectiveForCausalLM(config).num_parameters()
    assert (counts["head"] == 0) == config.tie_word_embeddings  # tied: counted once
