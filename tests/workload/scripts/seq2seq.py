"""In the form of PyTorch's translation tutorial: encoder and decoder with an optimizer each, GRUs."""

import torch
from common import digest
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(4)
WORDS, HIDDEN = 30, 16
encoder = nn.ModuleList([nn.Embedding(WORDS, HIDDEN), nn.GRU(HIDDEN, HIDDEN, batch_first=True)])
decoder = nn.ModuleList(
    [nn.Embedding(WORDS, HIDDEN), nn.GRU(HIDDEN, HIDDEN, batch_first=True), nn.Linear(HIDDEN, WORDS)]
)
encoder_optimizer = torch.optim.Adam(encoder.parameters(), lr=0.001)
decoder_optimizer = torch.optim.Adam(decoder.parameters(), lr=0.001)
pairs = TensorDataset(torch.randint(WORDS, (200, 5)), torch.randint(WORDS, (200, 6)))
for epoch in range(2):
    for source, target in DataLoader(pairs, batch_size=8):
        encoder_optimizer.zero_grad()
        decoder_optimizer.zero_grad()
        _, hidden = encoder[1](encoder[0](source))
        outputs, _ = decoder[1](decoder[0](target), hidden)
        loss = nn.functional.nll_loss(decoder[2](outputs).log_softmax(-1).view(-1, WORDS), target.view(-1))
        loss.backward()
        encoder_optimizer.step()
        decoder_optimizer.step()
    print(epoch, loss.item())
print("digest", digest(encoder, decoder))
