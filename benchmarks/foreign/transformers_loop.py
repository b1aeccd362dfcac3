"""Hugging Face's `Trainer` on GPT-2, with accumulation and an evaluation every ten steps."""

import tempfile

import torch
import transformers
from digest import digest
from torch.utils.data import Dataset

torch.manual_seed(0)


class Ids(Dataset):
    def __len__(self):
        return 160

    def __getitem__(self, index):
        ids = torch.randint(100, (16,), generator=torch.Generator().manual_seed(index))
        return {"input_ids": ids, "labels": ids}


config = transformers.GPT2Config(n_layer=2, n_embd=32, n_head=2, vocab_size=100, n_positions=16)
model = transformers.GPT2LMHeadModel(config)
with tempfile.TemporaryDirectory() as folder:
    given = transformers.TrainingArguments(
        folder,
        num_train_epochs=2,
        per_device_train_batch_size=4,
        gradient_accumulation_steps=2,
        use_cpu=True,
        report_to=[],
        save_strategy="no",
        eval_strategy="steps",
        eval_steps=10,
        logging_steps=10,
        disable_tqdm=True,
    )
    trainer = transformers.Trainer(model=model, args=given, train_dataset=Ids(), eval_dataset=Ids())
    trainer.train()
digest(model)
