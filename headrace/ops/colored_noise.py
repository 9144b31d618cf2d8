"""Gaussian sequences with a power spectrum of 1 / f^beta and variance 1 at every step."""

from __future__ import annotations

import math

import torch
from torch import Tensor


def colored_noise(
    num_steps: int, num_sequences: int, beta: float, generator: torch.Generator
) -> Tensor:
    """Draw independent sequences by the method of Timmer and Koenig (1995).

    Each frequency gets a complex normal amplitude. An inverse Fourier transform turns them into a
    sequence. Frequency 0 gets the power of the lowest other frequency. As in Eberhard et al. 2023
    (https://openreview.net/forum?id=hQ9V5QN27eS), every element is standard normal.

    Args:
        num_steps: length of a sequence; even.
        beta: 0 for white noise, 1 for pink noise, 2 for red noise.

    Returns:
        ``[num_steps, num_sequences]`` float32.
    """
    count = num_steps // 2 + 1
    frequency = torch.arange(count, dtype=torch.float64).clamp(min=1)
    amplitude = frequency ** (-beta / 2)
    # Real amplitudes of the first and last frequency have the power of complex ones.
    share = torch.ones(count, dtype=torch.float64)
    share[0] = share[-1] = math.sqrt(0.5)
    deviation = 2 * (amplitude * share).square().sum().sqrt() / num_steps
    real, imaginary = torch.randn(2, count, num_sequences, generator=generator)
    real[0] *= math.sqrt(2)
    real[-1] *= math.sqrt(2)
    imaginary[0] = imaginary[-1] = 0
    scale = (amplitude / deviation).float().unsqueeze(-1)
    return torch.fft.irfft(torch.complex(real * scale, imaginary * scale), n=num_steps, dim=0)
