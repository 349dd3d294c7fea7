"""Fine-tune a small encoder for 50 steps with 1 - F1 of BERTScore as the loss.

The encoder learns to give the tokens of a noisy copy of a sequence the embeddings that a frozen
teacher gives those of the clean one. No similarity matrix is kept for backward, so what a step
holds grows with the number of tokens and not with its square.

    python examples/train_with_bertscore.py [--steps 50] [--tokens 256]
"""

from __future__ import annotations

import argparse
import copy

import torch
from torch import Tensor, nn

from flashbertscore.functional import bertscore

VOCABULARY, WIDTH = 1000, 64


class Encoder(nn.Module):
    """Embeddings, convolutions over three tokens, a projection: linear in the length."""

    def __init__(self) -> None:
        """Draw the weights."""
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, WIDTH)
        self.mix = nn.Conv1d(WIDTH, WIDTH, 3, padding=1)
        self.project = nn.Linear(WIDTH, WIDTH)

    def forward(self, ids: Tensor) -> Tensor:
        """Ids [B, N] to embeddings [B, N, WIDTH]."""
        hidden = self.embed(ids)
        mixed = self.mix(hidden.transpose(1, 2)).transpose(1, 2)
        result: Tensor = self.project(hidden + torch.nn.functional.gelu(mixed))
        return result


def train(steps: int, tokens: int, batch: int = 8, *, report: bool = True) -> list[float]:
    """Return the loss of every step."""
    torch.manual_seed(0)
    teacher = Encoder().eval().requires_grad_(False)  # noqa: FBT003 - torch's signature
    student = copy.deepcopy(teacher).train().requires_grad_(True)  # noqa: FBT003
    with torch.no_grad():  # forget part of what the teacher knows
        student.project.weight.add_(0.2 * torch.randn_like(student.project.weight))
    optimizer = torch.optim.Adam(student.parameters(), lr=3e-3)
    losses = []
    for step in range(steps):
        clean = torch.randint(VOCABULARY, (batch, tokens))
        noisy = torch.where(
            torch.rand(batch, tokens) < 0.1, torch.randint(VOCABULARY, (batch, tokens)), clean
        )
        lengths = torch.randint(tokens // 2, tokens + 1, (batch, 1))
        mask = torch.arange(tokens) < lengths
        scores = bertscore(student(noisy), teacher(clean), mask, mask)
        loss = (1 - scores.f1).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        if report and step % 10 == 0:
            print(f"step {step:3d}   1 - F1 = {loss:.4f}")
    if report:
        print(f"step {steps:3d}   1 - F1 = {losses[-1]:.4f}")
    return losses


def main() -> None:
    """Train as the command line says."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--tokens", type=int, default=256, help="longest sequence")
    options = parser.parse_args()
    train(options.steps, options.tokens)


if __name__ == "__main__":
    main()
