"""As nanoGPT's train.py: settings as words, batches without a DataLoader, micro-batches, an evaluation at first."""

import sys

import torch
from transformers import GPT2Config, GPT2LMHeadModel

settings = {"eval_interval": 1000, "max_iters": 300, "gradient_accumulation_steps": 2}
settings |= {name.lstrip("-"): int(value) for name, _, value in (word.partition("=") for word in sys.argv[2:])}
data = torch.randint(100, (5000,))


def get_batch():
    at = torch.randint(len(data) - 33, (4,))
    return torch.stack([data[i : i + 32] for i in at]), torch.stack([data[i + 1 : i + 33] for i in at])


model = GPT2LMHeadModel(GPT2Config(n_layer=2, n_embd=32, n_head=2, vocab_size=100, n_positions=32))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for step in range(settings["max_iters"]):
    if step % settings["eval_interval"] == 0:
        with torch.no_grad():
            model(get_batch()[0])
    for _ in range(settings["gradient_accumulation_steps"]):
        x, y = get_batch()
        loss = torch.nn.functional.cross_entropy(model(x).logits.flatten(0, 1), y.flatten())
        (loss / settings["gradient_accumulation_steps"]).backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
