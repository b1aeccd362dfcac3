"""In the form of pytorch/examples, time_sequence_prediction/train.py: double precision, LBFGS, a closure many times a step."""

import numpy as np
import torch
from common import digest
from torch import nn, optim


class Sequence(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm1 = nn.LSTMCell(1, 9)
        self.lstm2 = nn.LSTMCell(9, 9)
        self.linear = nn.Linear(9, 1)

    def forward(self, inputs, future=0):
        outputs = []
        h_t = c_t = h_t2 = c_t2 = torch.zeros(inputs.size(0), 9, dtype=torch.double)
        for input_t in inputs.split(1, dim=1):
            h_t, c_t = self.lstm1(input_t, (h_t, c_t))
            h_t2, c_t2 = self.lstm2(h_t, (h_t2, c_t2))
            outputs += [self.linear(h_t2)]
        return torch.cat(outputs, dim=1)


np.random.seed(0)
torch.manual_seed(0)
data = np.sin((np.arange(20) + np.random.randint(-40, 40, 6).reshape(6, 1)) / 4.0)
inputs, target = torch.from_numpy(data[:, :-1]), torch.from_numpy(data[:, 1:])
seq = Sequence()
seq.double()
criterion = nn.MSELoss()
optimizer = optim.LBFGS(seq.parameters(), lr=0.5, max_iter=4)
for i in range(30):

    def closure():
        optimizer.zero_grad()
        loss = criterion(seq(inputs), target)
        loss.backward()
        return loss

    loss = optimizer.step(closure)
    print("STEP:", i, float(loss))
print("digest", digest(seq))
