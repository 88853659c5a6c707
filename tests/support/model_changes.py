"""What users do to a model between two calls of `generate`, each a function of model and seed."""

import operator
import random
from collections.abc import Callable
from functools import partial
from types import FunctionType, MethodType
from typing import Any, cast

import torch
from peft import LoraConfig
from torch.nn.utils import prune
from transformers.pytorch_utils import Conv1D

Change = Callable[[Any, random.Random], None]


def _linear_layers(model: Any) -> list[Any]:
    classes = torch.nn.Linear, Conv1D
    layers = [module for module in model.modules() if isinstance(module, classes)]
    return [layer for layer in layers if "weight" in layer._parameters]  # not pruned


def _norms(model: Any) -> list[Any]:
    return [each for each in model.modules() if "Norm" in type(each).__name__]


def _noise(tensor: torch.Tensor, choose: random.Random, scale: float = 0.3) -> torch.Tensor:
    source = torch.Generator().manual_seed(choose.randrange(1 << 30))
    return scale * torch.randn(tensor.shape, generator=source)


def add_to_a_layer(model: Any, choose: random.Random) -> None:
    layer = choose.choice(_linear_layers(model))
    layer.weight.data += _noise(layer.weight, choose)


def write_a_row_through_numpy(model: Any, choose: random.Random) -> None:
    weight = model.get_output_embeddings().weight
    weight.detach().numpy()[choose.randrange(len(weight))] *= 30


def scale_a_column_through_numpy(model: Any, choose: random.Random) -> None:
    weights = [layer.weight for layer in _linear_layers(model)]
    weight = choose.choice([each for each in weights if each.shape[1] > each.shape[0]])
    weight.detach().numpy()[:, choose.randrange(weight.shape[1])] *= 1000


def put_other_storage(model: Any, choose: random.Random) -> None:
    layer = choose.choice(_linear_layers(model))
    layer.weight.data = layer.weight.data + _noise(layer.weight, choose)


def load_a_state(model: Any, choose: random.Random) -> None:
    state = {
        name: value + _noise(value, choose, 0.1) if value.is_floating_point() else value
        for name, value in model.state_dict().items()
    }
    model.load_state_dict(state, assign=True)


def change_a_norm(model: Any, choose: random.Random) -> None:
    norm = choose.choice(_norms(model))
    norm.weight.data *= 1 + _noise(norm.weight, choose, 1.0)


def change_a_buffer(model: Any, choose: random.Random) -> None:
    for buffer in model.buffers():
        buffer.data *= choose.uniform(0.2, 3)


def change_an_attribute(model: Any, choose: random.Random) -> None:
    norm = _norms(model)[0]  # the last one would scale the logits alone
    name = "variance_epsilon" if hasattr(norm, "variance_epsilon") else "eps"
    setattr(norm, name, choose.uniform(0.5, 3))


def change_the_config(model: Any, choose: random.Random) -> None:
    """Of these models only Gemma 2 reads values in its forward."""
    model.config.final_logit_softcapping = choose.uniform(0.5, 5)
    if hasattr(model.config, "sliding_window"):
        model.config.sliding_window = choose.choice([12, 18, 24, 30])


class Scaled(torch.nn.Module):
    """Its factor is a tensor that is neither parameter nor buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.factor = torch.ones(1)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        return hidden * self.factor


def _put_activation(model: Any, make: Callable[[], Any]) -> None:
    modules = ((each, name) for each in model.modules() for name in ("act_fn", "act"))
    # Of the first layer: later ones' keys and values depend on it.
    layer, name = next(each for each in modules if hasattr(*each))
    delattr(layer, name)  # first, so that the new one can take its address
    setattr(layer, name, make())


def replace_a_module(model: Any, choose: random.Random) -> None:
    classes = [torch.nn.GELU, torch.nn.Tanh, torch.nn.ReLU, torch.nn.Identity]
    _put_activation(model, choose.choice(classes))


def put_a_partial(model: Any, choose: random.Random) -> None:
    slope, function = choose.uniform(-1, 1), torch.nn.functional.leaky_relu
    _put_activation(model, lambda: partial(function, negative_slope=slope))


def put_a_method(model: Any, choose: random.Random) -> None:
    factor = choose.uniform(-1, 1)
    _put_activation(model, lambda: MethodType(operator.mul, factor))


def write_into_a_plain_tensor(model: Any, choose: random.Random) -> None:
    """Its first call puts it into the model."""
    scaled = [module for module in model.modules() if isinstance(module, Scaled)]
    if not scaled:
        _put_activation(model, Scaled)
    for module in scaled:
        tensor = choose.choice([module.factor, module.factor.data])
        tensor.fill_(choose.uniform(-2, 2))


def prune_a_layer(model: Any, choose: random.Random) -> None:
    """Its first call replaces a parameter by others; later ones write to these."""
    pruned = [layer for layer in model.modules() if hasattr(layer, "weight_orig")]
    if not pruned:
        torch.manual_seed(choose.randrange(1 << 30))
        layer, pruning = choose.choice(_linear_layers(model)), cast(Any, prune)
        with torch.no_grad():
            pruning.random_unstructured(layer, "weight", amount=0.5)
    for layer in pruned:
        layer.weight_orig.data += _noise(layer.weight_orig, choose)


def hook_a_layer(model: Any, choose: random.Random) -> None:
    factor = choose.uniform(-2, 2)
    layer = choose.choice(_linear_layers(model))
    layer.register_forward_hook(lambda layer, given, output: output * factor)


def hook_before_a_layer(model: Any, choose: random.Random) -> None:
    factor = choose.uniform(-2, 2)
    layer = choose.choice(_linear_layers(model))
    layer.register_forward_pre_hook(lambda layer, given: (given[0] * factor,))


def hook_with_a_state(model: Any, choose: random.Random) -> None:
    """Its first call registers it; later ones change what it does."""
    if not hasattr(model, "steering"):
        model.steering = [0.0]
        state = model.steering
        model.get_input_embeddings().register_forward_hook(
            lambda layer, given, output: output + state[0]
        )
    model.steering[0] = choose.uniform(-1, 1)


def replace_a_forward(model: Any, choose: random.Random) -> None:
    layer, factor = choose.choice(_linear_layers(model)), choose.uniform(-2, 2)
    layer.forward = lambda hidden: factor * type(layer).forward(layer, hidden)


def remove_hooks(model: Any, choose: random.Random) -> None:
    for module in model.modules():
        module._forward_hooks.clear()
        if not hasattr(module, "weight_orig"):
            module._forward_pre_hooks.clear()
        vars(module).pop("forward", None)


def add_an_adapter(model: Any, choose: random.Random) -> None:
    name = f"adapter{len(getattr(model, 'peft_config', {}))}"
    names = {name.rpartition(".")[2] for name, _ in model.named_modules()}
    modules = choose.choice([{"q_proj", "v_proj", "c_attn"}, {"down_proj", "c_fc"}]) & names
    torch.manual_seed(choose.randrange(1 << 30))
    options: dict[str, Any] = {"target_modules": sorted(modules), "init_lora_weights": False}
    config = LoraConfig(r=4, lora_alpha=16, fan_in_fan_out="c_fc" in names, **options)
    model.add_adapter(config, name)
    model.set_adapter(name)


def set_an_adapter(model: Any, choose: random.Random) -> None:
    if names := [*getattr(model, "peft_config", {})]:
        model.set_adapter(choose.choice(names))
        choose.choice([model.enable_adapters, model.disable_adapters])()


CHANGES: list[Change] = [
    each
    for name, each in vars().copy().items()
    if isinstance(each, FunctionType) and each.__module__ == __name__ and name[0] != "_"
]
