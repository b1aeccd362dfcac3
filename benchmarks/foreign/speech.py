"""Speech recognition: recordings of different lengths, padded, a packed LSTM and CTC, two batches a step."""

import torch
from digest import digest
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence, pad_sequence
from torch.utils.data import DataLoader

torch.manual_seed(0)
sounds = [(torch.randn(int(n), 20), torch.randint(1, 12, (4,))) for n in torch.randint(20, 80, (192,))]


def collate(batch):
    batch = sorted(batch, key=lambda row: -len(row[0]))
    lengths = torch.tensor([len(sound) for sound, _ in batch])
    return pad_sequence([sound for sound, _ in batch], batch_first=True), lengths, torch.stack([t for _, t in batch])


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm, self.head = nn.LSTM(20, 32, batch_first=True, bidirectional=True), nn.Linear(64, 12)

    def forward(self, x, lengths):
        packed, _ = self.lstm(pack_padded_sequence(x, lengths, batch_first=True))
        return self.head(pad_packed_sequence(packed, batch_first=True)[0]).log_softmax(2)


model = Net()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for number, (x, lengths, texts) in enumerate(DataLoader(sounds, batch_size=4, collate_fn=collate)):
    loss = nn.functional.ctc_loss(model(x, lengths).transpose(0, 1), texts, lengths, torch.full((len(x),), 4))
    (loss / 2).backward()
    if number % 2:
        optimizer.step()
        optimizer.zero_grad()
digest(model)
