"""Python's view of the compiled library's structs is made from the library's own."""

import struct as bytes_of

import pytest
import torch

from selattn.utils import native
from selattn.utils.structs import Struct, constant, struct

needs_library = pytest.mark.skipif(native.library() is None, reason="the library was not built")


@needs_library
@pytest.mark.parametrize("name", ["Problem", "Eviction", "Step"])
def test_a_struct_is_as_large_as_the_library_says(name):
    assert struct(name).size == constant(f"sizeof({name})") > 0
    assert {"B", "H", "G", "scale", "strength", "relu", "shift"} <= struct(name).fields.keys()


FIELDS = "int a\nstrides s\nreal b\npointer p\n"


def test_fields_are_set_by_name_wherever_they_stand():
    x = torch.zeros(2, 3, 4, 5)
    given = {"p": x, "b": 0.5, "s": x, "a": 7}
    assert Struct("Some", FIELDS).pack(**given) == bytes_of.pack("@q3qdP", 7, 60, 20, 5, 0.5, x.data_ptr())
    turned = Struct("Some", "".join(reversed(FIELDS.splitlines(keepends=True)))).pack(**given)
    assert turned == bytes_of.pack("@Pd3qq", x.data_ptr(), 0.5, 60, 20, 5, 7)


@pytest.mark.parametrize("change", [{"missing": "a"}, {"surplus": "z"}])
def test_a_forgotten_or_unknown_field_is_an_error(change):
    given = {"a": 1, "s": None, "b": 0.0, "p": None, change.get("surplus", "a"): 1}
    given.pop(change.get("missing"), None)
    with pytest.raises(TypeError, match="struct Some"):
        Struct("Some", FIELDS).pack(**given)
