"""Model definitions: the Llama family on the ops and backends of ``astrai_kernels``."""

from astrai_engine.models.allocation import allocate
from astrai_engine.models.config import ExpertsConfig, LayerConfig, ModelConfig
from astrai_engine.models.llama import LlamaModel
from astrai_engine.models.rope import RopeConfig
from astrai_engine.models.transformers_loading import load_with_transformers
from astrai_engine.models.transformers_model import TransformersModel
from astrai_engine.models.weights import ModelWeights

DecoderModel = LlamaModel | TransformersModel
"""A model that can be served."""

__all__ = [
    "DecoderModel",
    "ExpertsConfig",
    "LayerConfig",
    "LlamaModel",
    "ModelConfig",
    "ModelWeights",
    "RopeConfig",
    "TransformersModel",
    "allocate",
    "load_with_transformers",
]
