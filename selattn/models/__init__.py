"""The paper's decoder, and stock decoders made selective. Importing it makes the `Auto` classes know them."""

from selattn.models.causal_lm import SelectiveForCausalLM as SelectiveForCausalLM
from selattn.models.causal_lm import register
from selattn.models.config import SelectiveConfig as SelectiveConfig
from selattn.models.decoder import SelectiveModel as SelectiveModel
from selattn.models.form import NewForm as NewForm
from selattn.models.generation import Engine as Engine
from selattn.models.loading import Loaded as Loaded
from selattn.models.loading import load as load
from selattn.models.outputs import SelectiveModelOutput as SelectiveModelOutput
from selattn.models.outputs import SelectiveOutput as SelectiveOutput
from selattn.models.protocols import LanguageModel as LanguageModel
from selattn.models.stock.families import register_configs
from selattn.models.stock.make import evicting as evicting
from selattn.models.stock.make import make_selective as make_selective
from selattn.models.stock.make import make_standard as make_standard

register()
register_configs()
