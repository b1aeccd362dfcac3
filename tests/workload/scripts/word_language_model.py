"""In the form of pytorch/examples, word_language_model/main.py: an LSTM over slices of one long tensor, no DataLoader.

As the original it updates the weights by hand; --sgd uses an optimizer, --mark says what a step is.
"""

import sys

import torch
from common import digest
from torch import nn

import rooflaunch

TOKENS, BPTT, BATCH, EMBEDDING, HIDDEN = 50, 7, 4, 12, 12


class RNNModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Embedding(TOKENS, EMBEDDING)
        self.rnn = nn.LSTM(EMBEDDING, HIDDEN, 2, dropout=0.2)
        self.decoder = nn.Linear(HIDDEN, TOKENS)

    def forward(self, inputs, hidden):
        output, hidden = self.rnn(self.encoder(inputs), hidden)
        return nn.functional.log_softmax(self.decoder(output).view(-1, TOKENS), dim=1), hidden


torch.manual_seed(1111)
lr = 0.5
model, criterion = RNNModel(), nn.NLLLoss()
optimizer = torch.optim.SGD(model.parameters(), lr=lr) if "--sgd" in sys.argv else None
data = torch.randint(TOKENS, (BPTT * 30 + 1, BATCH))
hidden = (torch.zeros(2, BATCH, HIDDEN), torch.zeros(2, BATCH, HIDDEN))
for batch, i in enumerate(range(0, data.size(0) - 1, BPTT)):
    source, target = data[i : i + BPTT], data[i + 1 : i + 1 + BPTT].reshape(-1)
    model.zero_grad()
    hidden = tuple(state.detach() for state in hidden)
    output, hidden = model(source, hidden)
    loss = criterion(output, target)
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 0.25)
    if optimizer:
        optimizer.step()
    else:
        for p in model.parameters():
            p.data.add_(p.grad, alpha=-lr)
    if "--mark" in sys.argv:
        rooflaunch.step_done()
    if batch % 10 == 0:
        print(f"{batch:5d} loss {loss.item():5.2f}")
print("digest", digest(model))
