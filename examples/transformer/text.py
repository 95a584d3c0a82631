"""The text: Python's language reference as `help()` shows it, 465 000 characters that come with Python."""

from pydoc_data.topics import topics

import torch

Batch = tuple[torch.Tensor, torch.Tensor]  # inputs and targets, (size, length) int64


class Text:
    def __init__(self) -> None:
        text = "\n\n".join(topics[name] for name in sorted(topics))
        self.alphabet = sorted(set(text))
        code = {character: i for i, character in enumerate(self.alphabet)}
        self.characters = torch.tensor([code[character] for character in text])

    def batch(self, step: int, size: int, length: int) -> Batch:
        """Of one step; the same wherever it is asked for."""
        generator = torch.Generator().manual_seed(step)
        starts = torch.randint(len(self.characters) - length, (size, 1), generator=generator)
        places = starts + torch.arange(length)
        return self.characters[places], self.characters[places + 1]
