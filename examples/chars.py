"""Train a small GPT to predict the next character of this file: a language model as most people write it.

It downloads nothing, knows nothing of rooflaunch, and learns the file nearly by heart in half a minute on two cores.

python -m rooflaunch script -- examples/chars.py --block-size 128
"""

import argparse
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional

TEXT = Path(__file__).read_text(encoding="utf-8")
ALPHABET = sorted(set(TEXT))
TOKENS = torch.tensor([ALPHABET.index(character) for character in TEXT])


def get_batch(batch_size: int, block_size: int, device: str) -> tuple[Tensor, Tensor]:
    """Random pieces of the text, and the same pieces one character later: two tensors of (sequences, tokens)."""
    starts = torch.randint(len(TOKENS) - block_size, (batch_size, 1))
    places = starts + torch.arange(block_size)
    return TOKENS[places].to(device), TOKENS[places + 1].to(device)


class Block(nn.Module):
    """Causal attention and two linear layers, each added to its input."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.before_attention, self.before_mlp = nn.LayerNorm(width), nn.LayerNorm(width)
        self.query_key_value, self.project = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        """Map (sequences, tokens, width) to the same shape."""
        parts = self.query_key_value(self.before_attention(x)).chunk(3, dim=-1)
        query, key, value = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in parts)
        attended = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.project(attended.transpose(1, 2).flatten(2))
        return x + self.mlp(self.before_mlp(x))


class CharacterModel(nn.Module):
    """Embeddings of tokens and places, blocks, and a linear layer to the alphabet."""

    def __init__(self, block_size: int, width: int, layers: int) -> None:
        super().__init__()
        self.token, self.place = nn.Embedding(len(ALPHABET), width), nn.Embedding(block_size, width)
        self.blocks = nn.Sequential(*(Block(width, heads=4) for _ in range(layers)))
        self.head = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, len(ALPHABET)))

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits of the next character after each token: (sequences, tokens, alphabet)."""
        places = torch.arange(tokens.shape[1], device=tokens.device)
        return self.head(self.blocks(self.token(tokens) + self.place(places)))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--lr", type=float, default=0.002)
    parser.add_argument("--batch-size", type=int, default=16, help="sequences in a batch")
    parser.add_argument("--block-size", type=int, default=64, help="tokens in a sequence")
    parser.add_argument("--steps", type=int, default=800)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--layers", type=int, default=2)
    given = parser.parse_args()
    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = CharacterModel(given.block_size, given.width, given.layers).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=given.lr)
    for step in range(1, given.steps + 1):
        tokens, following = get_batch(given.batch_size, given.block_size, device)
        loss = functional.cross_entropy(model(tokens).flatten(0, 1), following.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 100 == 0 or step in (1, given.steps):
            print(f"step {step}: loss {loss.item():.2f}")


if __name__ == "__main__":
    main()
