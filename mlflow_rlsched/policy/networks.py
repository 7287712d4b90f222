"""Actor and critics, and the normalisation of what they see."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional

from mlflow_rlsched.policy.inputs import CLIP, ENCODED, FACTORS, HIDDEN, INPUTS, TINY


def layers(widths: Sequence[int]) -> nn.Sequential:
    """A multilayer perceptron with ReLU between its layers."""
    linear = [nn.Linear(a, b) for a, b in pairwise(widths)]
    between = [part for layer in linear[:-1] for part in (layer, nn.ReLU(inplace=True))]
    return nn.Sequential(*between, linear[-1])


class Normaliser(nn.Module):
    """Running mean, variance and range of the inputs; part of a policy's file.

    The parallel algorithm of Chan et al. 1979 ("Updating Formulae and a Pairwise Algorithm for
    Computing Sample Variances"). It begins as if it had seen one batch of mean 0 and variance 1, so
    that few inputs do not move it far.
    """

    def __init__(self, width: int = len(INPUTS), prior: float = 100.0) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(width))
        self.register_buffer("var", torch.ones(width))
        self.register_buffer("count", torch.full((1,), prior, dtype=torch.float64))
        self.register_buffer("low", torch.full((width,), torch.inf))
        self.register_buffer("high", torch.full((width,), -torch.inf))

    def update(self, inputs: Tensor) -> None:
        """Take in (N, 31) inputs."""
        share = len(inputs) / (self.count + len(inputs))
        off = inputs.mean(0) - self.mean
        spread = inputs.var(0, correction=0) - self.var
        self.var += (share * (spread + (1 - share) * off**2)).float()
        self.mean += (share * off).float()
        self.count += len(inputs)
        self.low.copy_(torch.minimum(self.low, inputs.amin(0)))
        self.high.copy_(torch.maximum(self.high, inputs.amax(0)))

    def forward(self, inputs: Tensor) -> Tensor:
        """Inputs of mean 0 and variance 1, clipped; the same shape."""
        return ((inputs - self.mean) * (self.var + TINY).rsqrt()).clamp(-CLIP, CLIP)


class Actor(nn.Module):
    """From normalised inputs to the logits of the GPU delta and the two factors in [-1, 1]."""

    def __init__(self) -> None:
        super().__init__()
        self.body = layers((len(INPUTS), *HIDDEN, ENCODED))
        # An actor that was taught nothing changes nothing (Lillicrap et al. 2016, section 7).
        last = self.body[-1]
        nn.init.uniform_(last.weight, -3e-3, 3e-3)
        nn.init.zeros_(last.bias)
        with torch.no_grad():
            last.bias[(ENCODED - FACTORS) // 2] = 2.0

    def forward(self, inputs: Tensor) -> tuple[Tensor, Tensor]:
        """Logits (N, 5) and factors (N, 2)."""
        out = self.body(inputs)
        return out[:, :-FACTORS], out[:, -FACTORS:].tanh()


class Critics(nn.Module):
    """Independent estimates of the return of an encoded action."""

    def __init__(self, count: int = 2) -> None:
        super().__init__()
        self.bodies = nn.ModuleList(
            layers((len(INPUTS) + ENCODED, *HIDDEN, 1)) for _ in range(count)
        )

    def forward(self, inputs: Tensor, action: Tensor) -> Tensor:
        """(N, count) estimates."""
        joined = torch.cat([inputs, action], 1)
        return torch.cat([body(joined) for body in self.bodies], 1)

    def first(self, inputs: Tensor, action: Tensor) -> Tensor:
        """(N, 1) estimates of the first critic, whose gradient the actor follows."""
        estimates: Tensor = self.bodies[0](torch.cat([inputs, action], 1))
        return estimates


def one_hot(logits: Tensor, noise: Tensor | float = 0.0) -> Tensor:
    """A one-hot choice with the gradient of the softmax (straight-through).

    With Gumbel noise the choice is a draw from the softmax (Jang et al. 2017, "Categorical
    Reparameterization with Gumbel-Softmax"); without, the likeliest.
    """
    soft = (logits + noise).softmax(1)
    hard = functional.one_hot(soft.argmax(1), soft.shape[1]).to(soft.dtype)
    return hard + (soft - soft.detach())


def gumbel(like: Tensor, generator: torch.Generator) -> Tensor:
    """Standard Gumbel noise in the shape of ``like``."""
    uniform = torch.rand(like.shape, generator=generator).clamp_min(1e-20)
    return -(-uniform.log()).log()
